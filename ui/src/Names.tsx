const SHOWN = 3;

/** The first of many names; the others are folded away. */
export function Names({ names, shown = SHOWN }: { names: string[]; shown?: number }) {
  // one more takes no more room than to say so
  const first = names.length === shown + 1 ? names : names.slice(0, shown);
  const others = names.slice(first.length);
  return (
    <>
      {first.join(", ")}
      {others.length > 0 && (
        <details>
          <summary>and {others.length.toLocaleString("en")} more</summary>
          {others.join(", ")}
        </details>
      )}
    </>
  );
}
