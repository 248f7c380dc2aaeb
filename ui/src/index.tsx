import { Page } from "./Page";

// Airflow's UI takes the component from here after it has imported the bundle.
Reflect.set(globalThis, "AirflowPlugin", Page);
