import { useLocation } from "react-router-dom";

import type { Host } from "./Page";
import { Page } from "./Page";
import { Tile } from "./Tile";

/** Airflow does not say that it is its dashboard where something is shown. */
function Barriers(host: Host) {
  return useLocation().pathname === "/" ? <Tile /> : <Page {...host} />;
}

// Airflow's UI takes the component from here after it has imported the bundle.
Reflect.set(globalThis, "AirflowPlugin", Barriers);
