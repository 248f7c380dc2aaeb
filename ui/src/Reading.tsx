import { Connecting } from "./Connecting";
import type { BarrierDetail } from "./model";
import { Empty } from "./Told";

/** How engines read this barrier. */
export function Reading({ deployment, barrier }: { deployment: string; barrier: BarrierDetail }) {
  const tables = barrier.tables.filter((table) => table.snapshot_id !== null).map((table) => table.table);
  const revision = barrier.revision > 0 ? `.r${barrier.revision}` : "";
  return (
    <section aria-labelledby="barrier-reading">
      <h4 id="barrier-reading">Read it</h4>
      {barrier.expiring_at !== null ? (
        <Empty>It expired: read a newer barrier.</Empty>
      ) : barrier.state !== "COMMIT" || tables.length === 0 ? (
        <Empty>It can be read once it is COMMIT and one of its tables has rows: wait for its jobs.</Empty>
      ) : (
        <Connecting
          deployment={deployment}
          warehouse={`${barrier.topology}@b${barrier.barrier_id}${revision}`}
          tables={tables}
          tag={barrier.tag}
        />
      )}
    </section>
  );
}
