/** The question that the audit has the answer to. */
export function Why({ reason, change }: { reason: string; change: (reason: string) => void }) {
  return (
    <label>
      Why, for the audit{" "}
      <input
        value={reason}
        onChange={(event) => change(event.target.value)}
        required
        maxLength={500}
        pattern=".*\S.*"
        autoComplete="off"
      />
    </label>
  );
}
