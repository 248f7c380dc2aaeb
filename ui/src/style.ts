// Colours are tokens of the Chakra theme that Airflow's UI has, so that light, dark and a theme of one's own fit.

const color = (name: string, level: string) => `var(--chakra-colors-${name}-${level})`;

const soft = (name: string) => `background:${color(name, "muted")};color:${color(name, "fg")}`;
const strong = (name: string) => `background:${color(name, "solid")};color:${color(name, "contrast")}`;
const outline = (name: string) => `border-color:${color(name, "solid")};color:${color(name, "fg")}`;

export const STYLE = `
.barriers{--line:var(--chakra-colors-border);--dim:var(--chakra-colors-fg-muted);--mark:${color("blue", "solid")};
  max-width:1400px;margin:0 auto;padding:12px 16px 32px;font-size:14px;line-height:1.45;color:var(--chakra-colors-fg)}
.barriers h2{font-size:20px;font-weight:600}
.barriers h3{font-size:16px;font-weight:600}
.barriers h4{font-size:14px;font-weight:600;margin:20px 0 6px}
.barriers a{text-decoration:underline;text-decoration-color:var(--line);text-underline-offset:3px}
.barriers a:hover{text-decoration-color:currentColor}
.barriers :focus-visible{outline:2px solid var(--mark);outline-offset:2px}
.barriers h3:focus{outline:none}
.barriers button,.barriers select,.barriers input{border:1px solid var(--line);border-radius:6px;padding:3px 10px;
  background:var(--chakra-colors-bg);color:inherit;font:inherit}
.barriers button{cursor:pointer}
.barriers button:hover{background:var(--chakra-colors-bg-muted)}
.barriers input{width:16em;max-width:50vw}
.barriers dialog{margin:auto;width:min(34em,92vw);padding:16px 20px;border:1px solid var(--line);border-radius:10px;
  background:var(--chakra-colors-bg);color:inherit}
.barriers dialog::backdrop{background:rgb(0 0 0/.45)}
.barriers dialog p,.barriers dialog label{display:block;margin:8px 0}
.barriers dialog input{display:block;width:100%;margin-top:6px;max-width:none}
.barriers dialog .line{justify-content:flex-end;margin-top:14px}
.barriers button.act{${strong("red")};border-color:transparent;font-weight:600}
.barriers .done{padding:8px 12px;border-radius:8px;margin:10px 0;${soft("green")}}
.barriers td .line{margin:0}
.barriers .acts{border-top:1px solid var(--line);padding-top:10px}
.barriers .correct{border:1px solid var(--line);border-radius:8px;padding:0 16px 12px;margin:8px 0}
.barriers .correct fieldset{margin:8px 0}
.barriers .correct fieldset label{display:block;margin:4px 0}
.barriers .correct :is([type=radio],[type=checkbox]){width:auto;margin-right:8px}
.barriers .correct [type=number]{width:8em}
.barriers .decisions{list-style:none;padding:0}
.barriers .decisions li{border:1px solid var(--line);border-radius:8px;padding:8px 12px;margin:8px 0}
.barriers .decisions .line{flex-wrap:nowrap}
.barriers .decisions button{flex:none}
.barriers b{font-weight:600}
.barriers .dim{color:var(--dim)}
.barriers .small{font-size:12px;font-weight:400}
.barriers .warn{color:${color("orange", "fg")}}
.barriers .plain{list-style:none;padding:0;margin-bottom:8px;overflow-wrap:anywhere}
.barriers .bad{color:${color("red", "fg")}}
.barriers .line{display:flex;flex-wrap:wrap;gap:6px 16px;align-items:center;margin:6px 0}
.barriers header.line{justify-content:space-between;margin-bottom:12px}
.barriers header nav{flex:1}
.barriers .hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.barriers .sentence{padding:28px 16px;text-align:center;color:var(--dim);border:1px dashed var(--line);border-radius:8px;margin:10px 0}
.barriers .problem{padding:8px 12px;border-radius:8px;margin:10px 0;${soft("red")}}
.barriers .problem button{margin-left:8px}
.barriers .live{font-size:12px;color:var(--dim);white-space:nowrap}
.barriers .live.live span{color:${color("green", "fg")}}
.barriers .live.reconnecting{color:${color("orange", "fg")}}
.barriers .pill{display:inline-block;padding:1px 10px;border-radius:99px;font-weight:600;font-size:13px;white-space:nowrap;${soft("gray")}}
.barriers a.pill{text-decoration:none}
.barriers a.pill[aria-current]{outline:2px solid var(--mark)}
.barriers .pill.ok,.barriers .pill.COMMIT{${soft("green")}}
.barriers .pill.late,.barriers .pill.retrying{${soft("orange")}}
.barriers .pill:is(.OPEN,.STAGING,.PRECOMMIT,.COMMITTING){${soft("blue")}}
.barriers .pill.failing,.barriers .pill.blocked,.barriers .pill.BLOCKED{${soft("red")}}
.barriers .pill.state{margin-left:10px;font-size:12px}
.barriers .cards{list-style:none;padding:0;display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:12px}
.barriers .card{border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.barriers .card.late,.barriers .card.retrying{border-left:4px solid ${color("orange", "solid")}}
.barriers .card.failing,.barriers .card.blocked{border-left:4px solid ${color("red", "solid")}}
.barriers .card .line{justify-content:space-between}
.barriers .card h3{overflow-wrap:anywhere;min-width:0}
.barriers .big{font-size:16px;margin:4px 0}
.barriers .dots{display:flex;flex-wrap:wrap;gap:3px}
.barriers .facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:10px 0 18px}
.barriers .facts>div{background:var(--chakra-colors-bg-muted);border:1px solid var(--line);border-radius:8px;padding:8px 12px;min-width:0}
.barriers .facts dt{color:var(--dim);font-size:13px}
.barriers .facts dd{display:flex;flex-direction:column;overflow-wrap:anywhere}
.barriers .facts b{font-size:18px}
.barriers .pager{display:flex;flex-wrap:wrap;gap:12px;align-items:center;margin:8px 0}
.barriers .scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.barriers table{border-collapse:collapse;width:100%}
.barriers th{font-weight:500;text-align:left}
.barriers .list th,.barriers .list td{padding:4px 12px;border-top:1px solid var(--line);vertical-align:top;white-space:nowrap}
.barriers .list td:last-child:not(:nth-child(-n+5)){white-space:normal;min-width:18em}
.barriers .list thead th{color:var(--dim);font-size:12px;border-top:0}
.barriers .grid .name{position:sticky;left:0;z-index:1;background:var(--chakra-colors-bg);padding:1px 12px;white-space:nowrap;
  max-width:46vw;overflow:hidden;text-overflow:ellipsis}
.barriers .grid td,.barriers .grid .barrier{padding:1px 3px;text-align:center;min-width:38px}
.barriers .grid thead th{vertical-align:top;padding-top:6px;padding-bottom:4px}
.barriers .grid .barrier span{display:block;font-size:12px;font-weight:400;white-space:nowrap;line-height:1.3}
.barriers .grid .barrier .dim{min-height:16px}
.barriers .grid .marks{min-height:16px;color:var(--mark)}
.barriers .grid .marks abbr{text-decoration:none;margin:0 1px}
.barriers .grid .dag span{position:sticky;left:12px}
.barriers .grid .dag th{font-size:12px;color:var(--dim);padding:8px 12px 2px;border-top:1px solid var(--line)}
.barriers .grid tbody:last-child tr:last-child>*{padding-bottom:8px}
.barriers .grid .rc{border-right:2px dashed var(--mark)}
.barriers .grid .rr{border-right:2px solid var(--mark)}
.barriers .rr-mark{color:var(--mark)}
.barriers .cell,.barriers .dot{display:inline-flex;vertical-align:middle;align-items:center;justify-content:center;width:30px;height:24px;border-radius:5px;
  border:1px solid transparent;font-size:12px;line-height:1;font-weight:600;text-decoration:none}
.barriers .cell:hover,.barriers .dot:hover{border-color:currentColor}
.barriers .cell.absent:hover{border-color:transparent}
.barriers .legend,.barriers .list .cell{font-size:12px}
.barriers .legend .cell,.barriers .list .cell{width:22px;height:18px}
.barriers .dot{width:24px;height:24px}
.barriers .written{${soft("green")}}
.barriers .unchanged{${soft("gray")}}
.barriers .processed{${soft("blue")}}
.barriers .running{${strong("blue")}}
.barriers .waiting{${outline("blue")}}
.barriers .pending{border-color:var(--chakra-colors-border-emphasized)}
.barriers .cell.late{${strong("orange")}}
.barriers .failed,.barriers .cell.blocked,.barriers .dot.blocked{${strong("red")}}
.barriers .aborted{${outline("gray")};border-style:dashed}
.barriers .legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--dim);margin:10px 0}
.barriers .text{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:2px 10px;align-items:start;margin:6px 0}
.barriers .text .dim{grid-column:1/-1}
.barriers pre{background:var(--chakra-colors-bg-muted);border:1px solid var(--line);border-radius:6px;padding:6px 10px;overflow-x:auto;
  font-size:12px;font-family:ui-monospace,monospace;margin:0}
.barriers .gantt{list-style:none;padding:0;margin:10px 0}
.barriers .gantt>li{display:grid;grid-template-columns:14em minmax(0,1fr) 6.5em;gap:10px;align-items:center;padding:2px 0}
.barriers .gantt .label{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;color:var(--dim);text-align:right}
.barriers .gantt .on .label{color:inherit;font-weight:600}
.barriers .gantt .sum{font-size:12px;color:var(--dim);white-space:nowrap}
.barriers .track{position:relative;height:20px;display:block;border-radius:4px;background:var(--chakra-colors-bg-muted)}
.barriers .track i{position:absolute;top:2px;bottom:5px;min-width:2px;border-radius:2px}
.barriers .track .work{background:${color("blue", "emphasized")}}
.barriers .track .wait{background:repeating-linear-gradient(135deg,var(--dim) 0 1px,transparent 1px 5px);border:1px solid var(--line)}
.barriers .track .wait.inputs{background:none;border:0;border-top:1px dotted var(--dim);top:10px;bottom:auto;min-width:0;border-radius:0}
.barriers .track .lost{background:repeating-linear-gradient(45deg,${color("red", "solid")} 0 3px,transparent 3px 6px);border:1px solid ${color("red", "solid")}}
.barriers .track .gone{background:var(--chakra-colors-bg-emphasized)}
.barriers .track .crit{top:auto;bottom:0;height:4px;background:${color("orange", "solid")};border-radius:0}
.barriers .crit-mark{color:${color("orange", "fg")}}
.barriers .axis .track{background:none;height:16px;font-size:12px;color:var(--dim)}
.barriers .axis .track span{position:absolute;white-space:nowrap;border-left:1px solid var(--line);padding-left:3px}
.barriers .legend .track{display:inline-block;vertical-align:middle;width:28px}
.barriers .legend .track i{left:0;right:0}
.barriers .tabs{display:flex;flex-wrap:wrap;gap:4px 18px;border-bottom:1px solid var(--line);margin-bottom:12px}
.barriers section>h3{margin:4px 0 8px}
.barriers section+section>h3{margin-top:20px}
.barriers .line>h3{margin:0}
.barriers .tabs a{padding:2px 2px 6px;color:var(--dim);text-decoration:none;border-bottom:2px solid transparent;white-space:nowrap}
.barriers .tabs a:hover{color:inherit}
.barriers .tabs a:focus-visible{outline-offset:-2px}
.barriers .tabs a[aria-current]{color:inherit;font-weight:600;border-color:var(--mark)}
.barriers .pager a[aria-current]{font-weight:600;text-decoration-color:currentColor;text-decoration-thickness:2px}
.barriers .blame .sum{font-size:13px}
.barriers .blame .label{color:inherit}
.barriers .gantt.blame>li{grid-template-columns:14em minmax(0,1fr) 19em}
.barriers .chart{margin:10px 0}
.barriers .plot{position:relative;border:1px solid var(--line);border-radius:8px;overflow:hidden}
.barriers .plot svg{display:block;width:100%;height:200px;cursor:pointer}
.barriers .plot span{position:absolute;left:6px;font-size:12px;line-height:1;color:var(--dim);pointer-events:none;
  background:var(--chakra-colors-bg);padding:1px 3px;border-radius:3px}
.barriers .plot .top{top:5px}
.barriers .plot .bottom{bottom:5px}
.barriers .plot span.objective{left:auto;right:6px;color:${color("orange", "fg")};transform:translateY(-120%)}
.barriers .chart path{fill:none;vector-effect:non-scaling-stroke;stroke-linecap:round}
.barriers .chart .delay,.barriers .chart .dots{stroke:var(--mark);stroke-width:2}
.barriers .chart .dots{stroke-width:6}
.barriers .chart .age{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3}
.barriers .chart .now{stroke-width:1.5;stroke-dasharray:5 4}
.barriers .chart path.objective{stroke:${color("orange", "solid")};stroke-width:1.5;stroke-dasharray:6 5}
.barriers .chart .missed{stroke:${color("orange", "solid")};stroke-width:9;stroke-linecap:square}
.barriers .chart .pointed{stroke:var(--dim);stroke-width:1}
.barriers .chart .legend svg{display:inline-block;width:28px;height:10px;vertical-align:middle}
.barriers .times{display:flex;justify-content:space-between;font-size:12px;color:var(--dim);margin:2px 0}
.barriers .graph{padding:12px;border:1px solid var(--line);border-radius:8px;margin:10px 0}
.barriers .graph>div{position:relative;margin:0 auto}
.barriers .graph path{fill:none;stroke:var(--dim);opacity:.6}
.barriers .node{position:absolute;padding:6px 10px;border:1px solid var(--line);border-radius:8px;background:var(--chakra-colors-bg);line-height:19px}
.barriers .node>*{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;height:19px}
.barriers .node>:first-child{font-weight:600}
.barriers .node.outside{border-style:dashed;border-radius:99px;padding-left:20px;padding-right:20px}
.barriers .node.share1{background:${color("orange", "subtle")}}
.barriers .node.share2{background:${color("orange", "muted")};border-color:${color("orange", "emphasized")}}
.barriers .node.share3{background:${color("orange", "muted")};border:3px solid ${color("orange", "solid")};padding:4px 8px}
.barriers .node:is(.share1,.share2,.share3) .dim{color:inherit}
.barriers.tile{order:5;width:100%;max-width:none;margin:0;padding:10px 16px;border:1px solid var(--line);border-radius:8px}
.barriers.tile ul{list-style:none;padding:0}
.barriers .missing{list-style:disc;padding-left:1.4em}
.barriers summary{cursor:pointer;margin:6px 0}
@media (max-width:600px){.barriers .gantt.blame>li{grid-template-columns:minmax(0,1fr) auto}.barriers .blame .label{text-align:left}
.barriers .blame .track{grid-row:2;grid-column:1/-1}.barriers .blame .sum{font-size:12px}}
@media (max-width:600px){.barriers .gantt>li{grid-template-columns:7.5em minmax(0,1fr) 56px;gap:6px}.barriers .gantt .sum{font-size:11px}}
@media (max-width:600px){.barriers .grid .name{max-width:36vw;padding-right:4px}.barriers{padding:8px 8px 24px}}
`;
