import type { ReactNode } from "react";

import type { Asked } from "./asked";
import { Loading, Problem } from "./Told";

/** What was answered, as soon as it is; and what went wrong. */
export function Answered<T>({ asked, children }: { asked: Asked<T>; children: (answer: T) => ReactNode }) {
  const { answer, problem, again } = asked;
  return (
    <>
      {problem && <Problem problem={problem} again={again} />}
      {answer === null && problem === null && <Loading />}
      {answer !== null && children(answer)}
    </>
  );
}
