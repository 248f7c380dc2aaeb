// Where the nodes of a graph without cycles stand: in columns, by their longest way from a source.

export interface Node {
  id: string;
  height: number;
}

export type Edge = readonly [from: string, to: string];

export interface Drawing {
  places: Map<string, { x: number; y: number }>;
  /** Of each edge, in their order. */
  paths: string[];
  width: number;
  height: number;
}

export const NODE_WIDTH = 180;
const BETWEEN_COLUMNS = 44;
const BETWEEN_NODES = 14;
/** Of an edge that passes by a column. */
const PASSING = 6;
const SWEEPS = 8;

export function draw(nodes: Node[], edges: Edge[]): Drawing {
  const column = columnsOf(nodes, edges);
  const height = new Map(nodes.map((node) => [node.id, node.height]));
  const columns: string[][] = [];
  const put = (id: string, at: number) => (columns[at] ??= []).push(id);
  nodes.forEach(({ id }) => put(id, column.get(id) ?? 0));
  // an edge over several columns has a place in each between, so that it passes by the nodes there
  const ways = edges.map(([from, to], index) => {
    const way = [from];
    for (let at = (column.get(from) ?? 0) + 1; at < (column.get(to) ?? 0); at++) {
      const id = `${index} passes ${at}`;
      height.set(id, PASSING);
      put(id, at);
      way.push(id);
    }
    return [...way, to];
  });
  order(columns, ways);

  const tall = (id: string) => height.get(id) ?? 0;
  const sums = columns.map((ids) => ids.reduce((sum, id) => sum + tall(id) + BETWEEN_NODES, -BETWEEN_NODES));
  const whole = Math.max(0, ...sums);
  const places = new Map<string, { x: number; y: number }>();
  columns.forEach((ids, at) => {
    let y = (whole - (sums[at] ?? 0)) / 2;
    for (const id of ids) {
      places.set(id, { x: at * (NODE_WIDTH + BETWEEN_COLUMNS), y });
      y += tall(id) + BETWEEN_NODES;
    }
  });
  const paths = ways.map((way) => {
    const points = way.map((id) => {
      const { x, y } = places.get(id) ?? { x: 0, y: 0 };
      return { x, y: y + tall(id) / 2 };
    });
    return points.slice(1).reduce((path, to, index) => {
      const from = points[index] ?? to;
      const [begin, middle] = [from.x + NODE_WIDTH, (from.x + NODE_WIDTH + to.x) / 2];
      return `${path}${index === 0 ? "M" : "L"}${begin} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
    }, "");
  });
  return { places, paths, width: columns.length * (NODE_WIDTH + BETWEEN_COLUMNS) - BETWEEN_COLUMNS, height: whole };
}

/** The longest way to each node; what nothing leads to stands just before what it leads to. */
function columnsOf(nodes: Node[], edges: Edge[]): Map<string, number> {
  const before = grouped(edges.map(([from, to]) => [to, from]));
  const after = grouped(edges);
  const found = new Map<string, number>();
  const columnOf = (id: string): number => {
    const known = found.get(id);
    if (known !== undefined) {
      return known;
    }
    found.set(id, 0); // would there be a cycle, this ends it
    const column = Math.max(-1, ...(before.get(id) ?? []).map(columnOf)) + 1;
    found.set(id, column);
    return column;
  };
  nodes.forEach(({ id }) => columnOf(id));
  for (const { id } of nodes) {
    const next = (after.get(id) ?? []).map((to) => found.get(to) ?? 0);
    if (!before.has(id) && next.length > 0) {
      found.set(id, Math.max(0, Math.min(...next) - 1));
    }
  }
  return found;
}

/** Each node near the middle of those that it is joined with: few edges cross. */
function order(columns: string[][], ways: string[][]): void {
  const hops = ways.flatMap((way) => way.slice(1).map((to, index) => [way[index] ?? to, to] as const));
  const before = grouped(hops.map(([from, to]) => [to, from]));
  const after = grouped(hops);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const right = sweep % 2 === 0;
    const joined = right ? before : after;
    for (let step = 1; step < columns.length; step++) {
      const at = right ? step : columns.length - 1 - step;
      const beside = new Map((columns[right ? at - 1 : at + 1] ?? []).map((id, index) => [id, index]));
      const here = columns[at] ?? [];
      const middle = new Map(
        here.map((id, index) => {
          const positions = (joined.get(id) ?? []).flatMap((other) => beside.get(other) ?? []);
          return [id, positions.length > 0 ? positions.reduce((sum, each) => sum + each, 0) / positions.length : index];
        }),
      );
      here.sort((one, other) => (middle.get(one) ?? 0) - (middle.get(other) ?? 0));
    }
  }
}

function grouped(pairs: readonly Edge[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const [key, value] of pairs) {
    found.set(key, [...(found.get(key) ?? []), value]);
  }
  return found;
}
