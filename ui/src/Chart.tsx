import { useMemo, useState } from "react";
import type { PointerEvent } from "react";
import { Link, useNavigate } from "react-router-dom";

import { duration, fullTime, spent } from "./clock";
import type { Delay, DelayPoint } from "./model";

/** Units of the picture, which is stretched to its place. */
const WIDTH = 1_000;
const HEIGHT = 200;
/** Above, each barrier has no dot of its own. */
const DOTS = 150;
const ROWS = 100;

/** The delay of barriers over time, and how old what readers had was just before each, beside the objective. */
export function Chart({ delay, to }: { delay: Delay; to: (barrier: number) => string }) {
  const { points, objective, present } = delay;
  const navigate = useNavigate();
  const [pointed, point] = useState<DelayPoint | null>(null);
  const { x, y, top, first, last } = useMemo(() => scales(delay), [delay]);
  const delays = points.map((each) => [x(each.readable_at), y(each.seconds)] as const);
  const ages = points.filter((each) => each.stale !== null).map((each) => [x(each.readable_at), y(each.stale ?? 0)] as const);
  // what is open grows
  const open = present.seconds === null ? [] : [...delays.slice(-1), [x(present.at), y(present.seconds)] as const];
  const old = present.stale === null ? [] : [...ages.slice(-1), [x(present.at), y(present.stale)] as const];

  const nearest = (event: PointerEvent<SVGSVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    point(points.reduce((best, each) => (Math.abs(x(each.readable_at) - at) < Math.abs(x(best.readable_at) - at) ? each : best)));
  };
  const missed = (each: DelayPoint) => objective !== null && (each.stale ?? 0) > objective;

  return (
    <figure className="chart">
      <div className="plot">
        <span className="top">{duration(top)}</span>
        <span className="bottom">0</span>
        {objective !== null && (
          <span className="objective" style={{ top: `${(y(objective) / HEIGHT) * 100}%` }}>
            objective {duration(objective)}
          </span>
        )}
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-labelledby="barriers-chart-title"
          onPointerMove={nearest}
          onPointerLeave={() => point(null)}
          onClick={() => pointed && navigate({ search: to(pointed.barrier_id) })}
        >
          <title id="barriers-chart-title">
            {`Seconds from timestamp to readable of ${points.length} barriers, ${fullTime(first)} to ${fullTime(last)}; the table below has them`}
          </title>
          {objective !== null && <path className="objective" d={`M0,${y(objective)} H${WIDTH}`} />}
          <path className="age" d={line(ages)} />
          <path className="delay" d={line(delays)} />
          <path className="age now" d={line(old)} />
          <path className="delay now" d={line(open)} />
          {points.length <= DOTS && <path className="dots" d={delays.map(([px, py]) => `M${px},${py} h.01`).join("")} />}
          <path className="missed" d={points.filter(missed).map((each) => `M${x(each.readable_at)},${y(each.stale ?? 0)} h.01`).join("")} />
          {pointed && <path className="pointed" d={`M${x(pointed.readable_at)},0 V${HEIGHT}`} />}
        </svg>
      </div>
      <div className="times" aria-hidden="true">
        <span>{fullTime(first)}</span>
        <span>{fullTime(last)}</span>
      </div>
      <figcaption>
        <ul className="legend" aria-label="Legend of the lines">
          <li>
            <svg viewBox="0 0 28 10" aria-hidden="true">
              <path className="delay" d="M0,5 H28" />
            </svg>{" "}
            from timestamp to readable
          </li>
          <li>
            <svg viewBox="0 0 28 10" aria-hidden="true">
              <path className="age" d="M0,5 H28" />
            </svg>{" "}
            how old what readers had was just before
          </li>
          <li>dashed at the end: until now</li>
          {objective !== null && (
            <li>
              <svg viewBox="0 0 28 10" aria-hidden="true">
                <path className="missed" d="M14,5 h.01" />
              </svg>{" "}
              older than the objective
            </li>
          )}
        </ul>
        <p className="dim">
          {pointed ? said(pointed) : "Point at the picture to see a barrier, click to open it."}
        </p>
        <details>
          <summary>As a table</summary>
          <div className="scroll" role="group" aria-label="Delays" tabIndex={0}>
            <table className="list">
              <caption className="hidden">The newest {Math.min(points.length, ROWS)} barriers</caption>
              <thead>
                <tr>
                  <th scope="col">barrier</th>
                  <th scope="col">timestamp</th>
                  <th scope="col">readable</th>
                  <th scope="col">delay</th>
                  <th scope="col">what readers had before was</th>
                </tr>
              </thead>
              <tbody>
                {points
                  .slice(-ROWS)
                  .reverse()
                  .map((each) => (
                    <tr key={each.barrier_id}>
                      <th scope="row">
                        <Link to={{ search: to(each.barrier_id) }}>{each.barrier_id}</Link>
                      </th>
                      <td>{fullTime(each.timestamp)}</td>
                      <td>{fullTime(each.readable_at)}</td>
                      <td>{spent(each.seconds)}</td>
                      <td className={missed(each) ? "warn" : ""}>
                        {each.stale === null ? "nothing" : `${duration(each.stale)} old`}
                      </td>
                    </tr>
                  ))}
              </tbody>
            </table>
          </div>
        </details>
      </figcaption>
    </figure>
  );
}

function said({ barrier_id: id, timestamp, seconds, stale }: DelayPoint): string {
  const before = stale === null ? "readers had nothing before" : `what readers had before was ${duration(stale)} old`;
  return `Barrier ${id}, ${fullTime(timestamp)}: ${spent(seconds)} until it was readable; ${before}.`;
}

function line(points: (readonly [number, number])[]): string {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

interface Scales {
  x: (time: string) => number;
  y: (seconds: number) => number;
  top: number;
  first: string;
  last: string;
}

/** From the first barrier until now. */
function scales({ points, objective, present }: Delay): Scales {
  const begin = Math.min(...points.map((each) => Date.parse(each.readable_at)));
  const end = Date.parse(present.at);
  // above the objective there is room for its name
  const top = Math.max((objective ?? 0) * 1.15, ...[...points, present].flatMap((each) => [each.seconds ?? 0, each.stale ?? 0])) || 1;
  return {
    // a dot at the edge is whole
    x: (time) => (end === begin ? WIDTH / 2 : 8 + ((Date.parse(time) - begin) / (end - begin)) * (WIDTH - 16)),
    y: (seconds) => HEIGHT - 6 - (Math.max(seconds, 0) / top) * (HEIGHT - 16),
    top,
    first: new Date(begin).toISOString(),
    last: present.at,
  };
}
