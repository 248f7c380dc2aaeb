import { DelayView } from "./Delay";
import { Deliveries } from "./Deliveries";
import { Graph } from "./Graph";
import type { Live } from "./LiveMark";
import type { Place } from "./place";
import { Readers } from "./Readers";
import { Revision, Revisions } from "./Revisions";
import { Sources } from "./Sources";
import { Topology } from "./Topology";

export interface ViewProps {
  deployment: string;
  topology: string;
  live: Live;
  place: Place;
  go: (place: Partial<Place>, replace?: boolean) => void;
}

/** What of a topology the address names; the grid if it names nothing that there is. */
export function View(props: ViewProps) {
  switch (props.place.view) {
    case "graph":
      return <Graph {...props} />;
    case "delay":
      return <DelayView {...props} />;
    case "revisions":
      return props.place.revision === null ? <Revisions {...props} /> : <Revision {...props} revision={props.place.revision} />;
    case "readers":
      return <Readers {...props} />;
    case "sources":
      return <Sources {...props} />;
    case "deliveries":
      return <Deliveries {...props} />;
    default:
      return <Topology {...props} />;
  }
}
