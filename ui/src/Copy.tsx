import { useEffect, useState } from "react";

export function Copy({ text, what }: { text: string; what: string }) {
  const [said, say] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => say(""), 2_000);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      // browsers allow it on https and localhost only
      say("Select it to copy");
    }
  };
  return (
    <button onClick={() => void copy()} aria-label={`Copy ${what}`}>
      <span role="status">{said || "Copy"}</span>
    </button>
  );
}
