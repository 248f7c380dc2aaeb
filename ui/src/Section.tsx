import type { ReactNode } from "react";

interface Props {
  title: string;
  columns: string[];
  /** What stands above it: the page's heading, or one of its parts'. */
  below?: "page" | "part";
  /** What is said before the table. */
  above?: ReactNode;
  children: ReactNode;
}

/** A table with a title. */
export function Section({ title, columns, below = "part", above, children }: Props) {
  const Heading = below === "page" ? "h3" : "h4";
  const id = `barriers-${title.toLowerCase().replaceAll(" ", "-")}`;
  return (
    <section aria-labelledby={id}>
      <Heading id={id}>{title}</Heading>
      {above}
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
