import type { ReactNode } from "react";

/** A table with a title. */
export function Section({ title, columns, children }: { title: string; columns: string[]; children: ReactNode }) {
  const id = `barriers-${title.toLowerCase().replaceAll(" ", "-")}`;
  return (
    <section aria-labelledby={id}>
      <h4 id={id}>{title}</h4>
      {/* reachable by the tab key, since it scrolls sideways where the window is narrow */}
      <div className="scroll" role="group" aria-labelledby={id} tabIndex={0}>
        <table className="list">
          <thead>
            <tr>
              {columns.map((column) => (
                <th key={column} scope="col">
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>{children}</tbody>
        </table>
      </div>
    </section>
  );
}
