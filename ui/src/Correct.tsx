import { useEffect, useId, useRef, useState } from "react";
import type { FormEvent } from "react";
import { Link, useNavigate } from "react-router-dom";

import { Answered } from "./Answered";
import { address } from "./api";
import { useAsked, useDoing } from "./asked";
import { Copy } from "./Copy";
import type { Done, Plan, Topology } from "./model";
import { search } from "./place";
import { Why } from "./Why";

/** What can be wrong, and of what it is asked which; the rest of docs/revising.md's table is for the command. */
const WRONG = {
  input: { label: "A file's content: it was corrected in place", which: null },
  recut: { label: "Which files a day has: some came late, were deleted, or have other names", which: "sources" },
  code: { label: "A job's code: the corrected one is deployed", which: "jobs" },
  full: { label: "State that cannot be replayed: begin with empty tables", which: null },
} as const;

type Wrong = keyof typeof WRONG;

/** From a barrier on: what was wrong, the plan, and the question that begins it. ``of``: the barrier's address. */
export function Correct({ at: of }: { at: string[] }) {
  const [, deployment = "", , topology = "", , barrier = ""] = of;
  const at = of.slice(0, 4);
  const [wrong, setWrong] = useState<Wrong>("input");
  const [last, setLast] = useState(barrier);
  const [chosen, setChosen] = useState<string[]>([]);
  const navigate = useNavigate();
  const planning = useDoing<Plan>();
  const [planned, setPlanned] = useState("");
  const correction = {
    first: Number(barrier),
    last: Number(last),
    jobs: wrong === "code" ? chosen : [],
    recut: wrong === "recut" ? chosen : [],
    full: wrong === "full",
  };
  // a plan is of what was asked: who asks for something else has none
  const plan = planned === JSON.stringify(correction) ? planning.answer : null;
  const here = { deployment, topology, view: "revisions" };
  const beginning = useDoing<Done>(({ summary }) => {
    void navigate({ search: search({ ...here, revision: String(plan?.revision) }) }, { state: { said: summary } });
  });
  const { which } = WRONG[wrong];
  const id = useId();
  return (
    <section className="correct" aria-labelledby={`${id}heading`}>
      <h4 id={`${id}heading`}>Correct from barrier {barrier}</h4>
      <form
        onSubmit={(event: FormEvent) => {
          event.preventDefault();
          if (!planning.busy) {
            setPlanned(JSON.stringify(correction));
            planning.start(address([...at, "revisions", "plan"]), correction);
            beginning.forget();
          }
        }}
      >
        <fieldset>
          <legend>What was wrong</legend>
          {(Object.keys(WRONG) as Wrong[]).map((each) => (
            <label key={each}>
              <input
                type="radio"
                name={`${id}wrong`}
                checked={wrong === each}
                onChange={() => {
                  setWrong(each);
                  setChosen([]);
                }}
              />
              {WRONG[each].label}
            </label>
          ))}
        </fieldset>
        {which !== null && (
          <Which
            key={which}
            at={at}
            which={which}
            chosen={chosen}
            choose={setChosen}
          />
        )}
        <div className="line">
          <label>
            Up to barrier{" "}
            <input
              type="number"
              min={barrier}
              value={last}
              required
              onChange={(event) => setLast(event.target.value)}
            />
          </label>
          <button type="submit" aria-disabled={planning.busy}>
            Plan
          </button>
          <span role="status">{planning.busy && "Looking at the tables and sources…"}</span>
        </div>
      </form>
      {planning.problem && (
        <p className="problem" role="alert">
          {planning.problem.message}
        </p>
      )}
      {plan && <Planned key={plan.lines.join()} plan={plan} />}
      {plan && (
        <Begin
          busy={beginning.busy}
          begin={(reason) =>
            beginning.start(address([...at, "revisions"]), { ...correction, revision: plan.revision, reason })
          }
        />
      )}
      {beginning.problem && (
        <p className="problem" role="alert">
          {beginning.problem.message}{" "}
          {beginning.problem.status === 409 && <Link to={{ search: search(here) }}>Revisions</Link>}
        </p>
      )}
    </section>
  );
}

interface WhichProps {
  at: string[];
  which: "jobs" | "sources";
  chosen: string[];
  choose: (names: string[]) => void;
}

function Which({ at, which, chosen, choose }: WhichProps) {
  const asked = useAsked<Topology>(address(at));
  return (
    <Answered asked={asked}>
      {({ jobs, sources }) => (
        <fieldset>
          <legend>Which {which}</legend>
          {(which === "jobs" ? jobs.map(({ job }) => job) : sources.map(({ source }) => source)).map((name) => (
            <label key={name}>
              <input
                type="checkbox"
                checked={chosen.includes(name)}
                required={chosen.length === 0}
                onChange={({ target }) =>
                  choose(target.checked ? [...chosen, name] : chosen.filter((each) => each !== name))
                }
              />
              {name}
            </label>
          ))}
        </fieldset>
      )}
    </Answered>
  );
}

function Planned({ plan }: { plan: Plan }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    heading.current?.focus();
  }, []);
  return (
    <>
      <h4 ref={heading} tabIndex={-1}>
        The plan: revision {plan.revision}, by {plan.dags.length > 1 ? "DAGs" : "DAG"} {plan.dags.join(", ")}
      </h4>
      <ul className="missing" aria-label="The plan">
        {plan.lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
      {plan.notes.map((note) => (
        <p key={note} className="warn">
          {note}
        </p>
      ))}
      <div className="line">
        <span className="dim">
          The same as a command, which has more ways to correct: <code>{plan.command}</code>
        </span>
        <Copy text={plan.command} what="the command" />
      </div>
    </>
  );
}

function Begin({ busy, begin }: { busy: boolean; begin: (reason: string) => void }) {
  const [reason, setReason] = useState("");
  return (
    <form
      className="line"
      onSubmit={(event) => {
        event.preventDefault();
        begin(reason);
      }}
    >
      <Why reason={reason} change={setReason} />
      <button type="submit" className="act" aria-disabled={busy}>
        Begin
      </button>
      <span role="status">{busy && "Under way…"}</span>
    </form>
  );
}
