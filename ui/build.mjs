// Builds the page into one file. What Airflow's UI shares as globals is not bundled: two Reacts do not work together.
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const HOST = {
  react: "React",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-router-dom": "ReactRouterDOM",
};

const host = {
  name: "host",
  setup(builder) {
    const filter = new RegExp(`^(${Object.keys(HOST).join("|")})$`);
    builder.onResolve({ filter }, ({ path }) => ({ path, namespace: "host" }));
    builder.onLoad({ filter: /.*/, namespace: "host" }, ({ path }) => ({
      contents: `module.exports = globalThis.${HOST[path]};`,
    }));
  },
};

await build({
  entryPoints: [join(here, "src", "index.tsx")],
  outfile: process.argv[2] ?? join(here, "..", "airflow_barrier", "plugins", "static", "barriers.js"),
  absWorkingDir: here,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
  plugins: [host],
});
