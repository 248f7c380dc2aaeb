import { useEffect, useId, useRef, useState } from "react";
import type { FormEvent, ReactNode } from "react";

import { Answered } from "./Answered";
import { address } from "./api";
import type { Doing } from "./asked";
import { useAsked, useDoing } from "./asked";
import type { Action, TablesInTheWay } from "./model";

/** Something that may be done: what it is called, what will happen, and the question that does it. */
interface Offer {
  label: string;
  says: string;
  url: string;
  body: Record<string, string>;
}

export interface Acting {
  choose: (offer: Offer) => void;
  /** The dialog, and what came of it. It stands where it stays, since what is offered goes once it is done. */
  shown: ReactNode;
}

/** One thing at a time is done from a page. ``again``: called once something has been. */
export function useActing(again: () => void): Acting {
  const [offer, choose] = useState<Offer | null>(null);
  const doing = useDoing(again);
  const outcome = useRef<HTMLParagraphElement>(null);
  const { said, problem } = doing;
  useEffect(() => {
    if (said !== null) {
      choose(null);
    }
  }, [said]);
  useEffect(() => {
    // once the dialog is gone; the button that had the focus before is gone as a rule
    if (said !== null && offer === null) {
      outcome.current?.focus();
    }
  }, [said, offer]);
  return {
    choose: (chosen) => {
      doing.forget();
      choose(chosen);
    },
    shown: (
      <>
        {offer !== null && <Sure key={offer.label} offer={offer} doing={doing} close={() => choose(null)} />}
        {said !== null && (
          <p ref={outcome} className="done" role="status" tabIndex={-1}>
            {said}
          </p>
        )}
        {problem !== null && offer === null && (
          <p className="problem" role="alert">
            {problem.message}
          </p>
        )}
      </>
    ),
  };
}

/** Says what will happen, and asks why. */
function Sure({ offer, doing, close }: { offer: Offer; doing: Doing; close: () => void }) {
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
    doing.start(offer.url, { ...offer.body, reason });
  };
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby={`${id}label`} aria-describedby={`${id}says`}>
      <form onSubmit={submit}>
        <h3 id={`${id}label`}>{offer.label}</h3>
        <p id={`${id}says`}>{offer.says}</p>
        <label>
          Why, for the audit
          <input
            value={reason}
            onChange={(event) => setReason(event.target.value)}
            required
            maxLength={500}
            pattern=".*\S.*"
            autoComplete="off"
          />
        </label>
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
  return (
    <>
      {actions.length > 0 && (
        <div className="line acts" role="group" aria-label="What you may do">
          {actions.map(({ action, label, says }) =>
            action === "resolve" ? (
              <button key={action} title={says} aria-expanded={looking} onClick={() => look(!looking)}>
                {label}
              </button>
            ) : (
              <button
                key={action}
                title={says}
                aria-haspopup="dialog"
                onClick={() => choose({ label, says, url: address([...at, action]), body: {} })}
              >
                {label}
              </button>
            ),
          )}
        </div>
      )}
      {looking && actions.some(({ action }) => action === "resolve") && <Decisions at={at} choose={choose} />}
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
