import { useEffect, useId, useRef, useState } from "react";
import type { FormEvent, ReactNode } from "react";

import { Answered } from "./Answered";
import { address } from "./api";
import type { Doing } from "./asked";
import { useAsked, useDoing } from "./asked";
import { Correct } from "./Correct";
import type { Action, Done, TablesInTheWay } from "./model";
import { Why } from "./Why";

/** Something that may be done: what it is called, what will happen, and the question that does it. */
interface Offer {
  label: string;
  says: string;
  url: string;
  body: Record<string, string>;
  /** Why is not asked: that is known. */
  unasked?: boolean;
}

export interface Acting {
  choose: (offer: Offer) => void;
  /** The dialog, and what came of it. It stands where it stays, since what is offered goes once it is done. */
  shown: ReactNode;
}

/** One thing at a time is done from a page. ``again``: called once something has been. */
export function useActing(again: () => void): Acting {
  const [offer, choose] = useState<Offer | null>(null);
  const doing = useDoing<Done>(() => {
    choose(null);
    again();
  });
  const { answer, problem } = doing;
  return {
    choose: (chosen) => {
      doing.forget();
      choose(chosen);
    },
    shown: (
      <>
        {offer !== null && <Sure key={offer.label} offer={offer} doing={doing} close={() => choose(null)} />}
        {answer !== null && offer === null && <Outcome>{answer.summary}</Outcome>}
        {problem !== null && offer === null && (
          <p className="problem" role="alert">
            {problem.message}
          </p>
        )}
      </>
    ),
  };
}

/** What came of an action. The button that had the focus before is gone as a rule. */
export function Outcome({ children }: { children: ReactNode }) {
  const outcome = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    outcome.current?.focus();
  }, []);
  return (
    <p ref={outcome} className="done" role="status" tabIndex={-1}>
      {children}
    </p>
  );
}

/** Says what will happen, and asks why. */
function Sure({ offer, doing, close }: { offer: Offer; doing: Doing<Done>; close: () => void }) {
  const [reason, setReason] = useState("");
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const shown = dialog.current;
    shown?.showModal();
    return () => shown?.close();
  }, []);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.start(offer.url, offer.unasked ? offer.body : { ...offer.body, reason });
  };
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby={`${id}label`} aria-describedby={`${id}says`}>
      <form onSubmit={submit}>
        <h3 id={`${id}label`}>{offer.label}</h3>
        <p id={`${id}says`}>{offer.says}</p>
        {!offer.unasked && <Why reason={reason} change={setReason} />}
        {doing.problem && (
          <p className="problem" role="alert">
            {doing.problem.message}
          </p>
        )}
        <div className="line">
          <button type="button" onClick={() => dialog.current?.close()}>
            Not now
          </button>
          {/* not disabled meanwhile: it has the focus */}
          <button type="submit" className="act" aria-disabled={doing.busy}>
            {offer.label}
          </button>
          <span role="status">{doing.busy && "Under way…"}</span>
        </div>
      </form>
    </dialog>
  );
}

/** A button for each action; ``at``: the address of what they are about, in parts. */
export function Buttons({ actions, at, choose }: { actions: Action[]; at: string[]; choose: Acting["choose"] }) {
  const [looking, look] = useState(false);
  const offers = (name: Action["action"]) => actions.some(({ action }) => action === name);
  return (
    <>
      {actions.length > 0 && (
        <div className="line acts" role="group" aria-label="What you may do">
          {actions.map(({ action, label, says }) =>
            action === "resolve" || action === "revise" ? (
              <button key={action} title={says} aria-expanded={looking} onClick={() => look(!looking)}>
                {label}
              </button>
            ) : (
              <button
                key={action}
                title={says}
                aria-haspopup="dialog"
                onClick={() => choose({ label, says, url: address([...at, action]), body: {}, unasked: action === "wake" })}
              >
                {label}
              </button>
            ),
          )}
        </div>
      )}
      {looking && offers("resolve") && <Decisions at={at} choose={choose} />}
      {looking && offers("revise") && <Correct at={at} />}
    </>
  );
}

/** The tables in the way of a BLOCKED barrier. They are looked at when a person wants to decide, which may take long. */
function Decisions({ at, choose }: { at: string[]; choose: Acting["choose"] }) {
  const asked = useAsked<TablesInTheWay>(address([...at, "decisions"]));
  return (
    <Answered asked={asked}>
      {({ tables }) => (
        <ul className="decisions" aria-label="Tables in the way">
          {tables.map(({ table, finding, choices }) => (
            <li key={table}>
              <p>{finding ?? "Nothing is in the way any more."}</p>
              {choices.map(({ decision, label, says }) => (
                <div key={decision} className="line">
                  <button
                    aria-haspopup="dialog"
                    onClick={() => choose({ label, says, url: address([...at, "resolve"]), body: { table, decision } })}
                  >
                    {label}
                  </button>
                  <span>{says}</span>
                </div>
              ))}
            </li>
          ))}
        </ul>
      )}
    </Answered>
  );
}
