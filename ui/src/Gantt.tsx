import { address } from "./api";
import { useAsked } from "./asked";
import { fullTime, spent, useNow } from "./clock";
import type { Live } from "./LiveMark";
import { useChanges } from "./LiveMark";
import type { BarrierDelay, BarrierDetail, Part } from "./model";
import type { Span, Stretch } from "./path";
import { PARTS, isWaiting, pathSaid, seconds, spans as spansOf, stretches, whose } from "./path";
import { Section } from "./Section";
import { Empty, Loading, Problem } from "./Told";

interface Props {
  deployment: string;
  barrier: BarrierDetail;
  live: Live;
}

/** Where the time of a barrier went: its critical path, and what each job did meanwhile. */
export function Gantt({ deployment, barrier, live }: Props) {
  const { barrier_id: id, topology } = barrier;
  const { answer, problem, again } = useAsked<BarrierDelay>(
    address(["deployments", deployment, "topologies", topology, "barriers", String(id), "delay"]),
  );
  useChanges(live, topology, again);
  return (
    <section aria-labelledby="barriers-gantt">
      <h4 id="barriers-gantt">Where its time went</h4>
      {problem?.status === 404 ? (
        <Empty>Of this barrier it cannot be told: look at the next one, which has its epoch.</Empty>
      ) : (
        problem && <Problem problem={problem} again={again} />
      )}
      {answer === null && problem === null && <Loading />}
      {answer && <Picture barrier={barrier} delay={answer} />}
      {answer && answer.tables.length > 0 && <Tables delay={answer} />}
      {answer?.deliveries.map(({ sink, seconds: later }) => (
        <p key={sink}>
          Sink {sink} had it {spent(later)} later.
        </p>
      ))}
    </section>
  );
}

interface Line {
  name: string;
  spans: Span[];
  path: Stretch[];
}

function Picture({ barrier, delay }: { barrier: BarrierDetail; delay: BarrierDelay }) {
  const now = useNow();
  const open = barrier.commit_at === null;
  const until = open ? Math.max(now, Date.parse(delay.until)) : Date.parse(delay.until);
  const path = stretches(delay, open ? now : null);
  const opened = Date.parse(barrier.opened_at);
  const first = Math.min(Date.parse(delay.since), opened);
  // what was caught up with was opened so late that nothing else could be seen
  const late = opened - first > 3 * (until - opened);
  const begin = late ? opened - (until - opened) / 12 : first;
  const whole = Math.max(until - begin, 1);
  const at = (time: number) => Math.min(Math.max(((time - begin) / whole) * 100, 0), 100);

  return (
    <>
      <p>
        {pathSaid(path, barrier.barrier_id, late ? opened : null)}
        {delay.since < delay.timestamp &&
          ` It has the epochs of barriers that were aborted, the oldest from ${fullTime(delay.since)}: their time counts.`}
      </p>
      <ul className="gantt">
        {linesOf(barrier, delay, path, open ? now : null).map(({ name, spans, path: its }) => {
          const isOn = its.length > 0;
          const said = saidOf(spans, isOn);
          return (
            <li key={name} className={isOn ? "on" : ""} title={`${name}: ${said}`}>
              <span className="label">
                <span className="crit-mark" aria-hidden="true">
                  {isOn ? "◆ " : ""}
                </span>
                {name}
              </span>
              <span className="hidden">: {said}</span>
              <span className="track" aria-hidden="true">
                {spans.map((each) => (
                  <i
                    key={`${each.part} ${each.begin}`}
                    className={barOf(each.part)}
                    style={{ left: `${at(each.begin)}%`, width: `${at(each.end) - at(each.begin)}%` }}
                  />
                ))}
                {its.map((each) => (
                  <i
                    key={each.begin}
                    className="crit"
                    style={{ left: `${at(each.begin)}%`, width: `${at(each.end) - at(each.begin)}%` }}
                  />
                ))}
              </span>
              <span className="sum" aria-hidden="true">
                {spent(seconds(spans.filter(({ part }) => part !== "inputs")))}
              </span>
            </li>
          );
        })}
        <li className="axis" aria-hidden="true">
          <span className="label" />
          <span className="track">
            {ticks(late ? opened : begin, until).map((tick) => (
              <span key={tick} style={{ left: `${at(tick)}%` }}>
                {spent((tick - (late ? opened : begin)) / 1_000)}
              </span>
            ))}
          </span>
          <span className="sum" />
        </li>
      </ul>
      <ul className="legend" aria-label="Legend of the bars">
        {[
          ["crit", "critical path"],
          ["work", "ran"],
          ["wait", "waited"],
          ["lost", "failed"],
        ].map(([name, words]) => (
          <li key={name}>
            <span className="track" aria-hidden="true">
              <i className={name} />
            </span>{" "}
            {name === "crit" ? "◆ " : ""}
            {words}
          </li>
        ))}
        <li>
          from {late ? `its opening, ${fullTime(barrier.opened_at)}` : `its timestamp, ${fullTime(delay.since)}`}, until{" "}
          {open ? "now" : "it was readable"}
        </li>
      </ul>
    </>
  );
}

/** How the bar of a part looks. */
export function barOf(part: Part): string {
  if (part === "inputs") {
    return "wait inputs";
  }
  return part === "failed tries" ? "lost" : isWaiting(part) ? "wait" : part === "not known any more" ? "gone" : "work";
}

function saidOf(spans: Span[], isOn: boolean): string {
  const each = spans.map(({ part, begin, end }) => `${PARTS[part][0]} ${spent((end - begin) / 1_000)}`);
  return `${each.join(", ")}${isOn ? "; on the critical path" : ""}`;
}

/** A line for each that has a part in the path, and for each job of the barrier. */
function linesOf(barrier: BarrierDetail, delay: BarrierDelay, path: Stretch[], now: number | null): Line[] {
  const lines = new Map<string, Line>();
  for (const [name, did] of Object.entries(delay.jobs)) {
    lines.set(name, { name, spans: spansOf(did, delay.until, now), path: [] });
  }
  for (const each of path) {
    const name = whose(each, barrier.barrier_id);
    const found = lines.get(name) ?? { name, spans: [], path: [] };
    lines.set(name, found);
    found.path.push(each);
    if (!(name in delay.jobs)) {
      found.spans.push(each);
    }
  }
  const from = ({ spans }: Line) => Math.min(...spans.filter(({ part }) => part !== "inputs").map((each) => each.begin));
  return [...lines.values()].filter(({ spans }) => spans.length > 0).sort((one, other) => from(one) - from(other));
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];

/** At most five, at round times. */
function ticks(begin: number, until: number): number[] {
  const seconds = (until - begin) / 1_000;
  const step = STEPS.find((each) => seconds / each <= 4) ?? 86_400 * Math.ceil(seconds / 86_400 / 4);
  return Array.from({ length: Math.floor(seconds / step) + 1 }, (_, index) => begin + index * step * 1_000);
}

function Tables({ delay }: { delay: BarrierDelay }) {
  return (
    <Section title="Delay of each table" columns={["table", "job", "inherited", "own", "waited for others", "commit"]}>
      {delay.tables.map(({ table, job, own, inherited, parts }) => (
        <tr key={table}>
          <th scope="row">{table}</th>
          <td>{job}</td>
          <td title="its job waited for other jobs, or for itself at the barrier before">{spent(inherited)}</td>
          <td title="its job was not asked for, waited for a slot or another try, or ran">{spent(own)}</td>
          <td title="it was staged, and other tables or an earlier barrier were not">
            {spent((parts.siblings ?? 0) + (parts["earlier barriers"] ?? 0))}
          </td>
          <td>{spent((parts.decision ?? 0) + (parts.commit ?? 0))}</td>
        </tr>
      ))}
    </Section>
  );
}
