import { useEffect, useRef, useState } from "react";

const PAUSE = 250;

interface Props {
  value: string;
  change: (value: string) => void;
  /** What is looked into. */
  of?: string;
}

/** Has what is typed at once; the address gets it at the next pause, since to go somewhere takes longer than a key. */
export function FilterBox({ value, change, of = "a name" }: Props) {
  const [text, setText] = useState(value);
  const told = useRef(value);
  const tell = useRef(change);
  useEffect(() => {
    tell.current = change;
  });
  useEffect(() => {
    // back, forward or a link changed the address
    if (value !== told.current) {
      told.current = value;
      setText(value);
    }
  }, [value]);
  useEffect(() => {
    if (text === told.current) {
      return undefined;
    }
    const timer = setTimeout(() => {
      told.current = text;
      tell.current(text);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label>
      Filter <input type="search" value={text} placeholder={`part of ${of}`} onChange={(event) => setText(event.target.value)} />
    </label>
  );
}
