"""The style sheet of the HTML page: light and dark, wide and narrow, on paper. Fetches nothing."""

STYLE = """
:root{
  --paper:#fbfaf8;--card:#fff;--ink:#1d1c1a;--soft:#6b6660;--line:#e4dfd8;--shade:#f4f1ec;
  --red:#c0392b;--red-soft:#fbeae7;--green:#2e7d4f;--green-soft:#e6f4ec;--amber:#b7791f;
  --blue:#2f6fb0;--violet:#7b5ea7;
  --sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;
  --mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
}
@media (prefers-color-scheme:dark){:root{
  --paper:#161513;--card:#1f1e1b;--ink:#ece8e1;--soft:#a19a90;--line:#35322d;--shade:#272521;
  --red:#f0766a;--red-soft:#3a211d;--green:#6fcf97;--green-soft:#1c3226;--amber:#e0b050;
  --blue:#7db4ea;--violet:#b79be0;
}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 var(--sans);
  -webkit-text-size-adjust:100%}
main{max-width:64rem;margin:0 auto;padding:2rem 1.25rem 4rem}
header{border-left:6px solid var(--red);background:var(--card);padding:1.25rem 1.5rem;
  border-radius:10px;box-shadow:0 1px 3px #0001,0 0 0 1px var(--line);margin-top:1rem}
section+header{margin-top:4rem}
header.good{border-color:var(--green)}
h1{font-size:1.7rem;line-height:1.25;margin:.35rem 0 .25rem;overflow-wrap:anywhere}
h2{font-size:.8rem;letter-spacing:.09em;text-transform:uppercase;color:var(--soft);
  margin:2.5rem 0 .75rem}
.badge{display:inline-block;margin:0;padding:.1rem .65rem;border-radius:99px;font-size:.8rem;
  font-weight:600;background:var(--red-soft);color:var(--red)}
.good .badge{background:var(--green-soft);color:var(--green)}
.which{display:inline-block;margin:0 0 0 .6rem;color:var(--soft);font-size:.85rem}
.cause{font-size:1.1rem;margin:0;overflow-wrap:anywhere}
.silence{margin:.5rem 0 0;padding:.45rem .8rem;border-radius:8px;background:var(--red-soft);
  color:var(--red);overflow-wrap:anywhere}
.when{margin:.35rem 0 0;color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
code,pre{font-family:var(--mono);font-size:.86em}
.figures{list-style:none;margin:1rem 0 0;padding:0;display:grid;gap:.75rem;
  grid-template-columns:repeat(auto-fit,minmax(11rem,1fr))}
.figures li{background:var(--card);border-radius:10px;padding:.8rem 1rem;
  box-shadow:0 0 0 1px var(--line)}
.figures b{display:block;font-size:1.5rem;line-height:1.2;font-weight:650;
  font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:.85rem}
.drawing{background:var(--card);border-radius:10px;box-shadow:0 0 0 1px var(--line);
  padding:.75rem .5rem}
svg{display:block;width:100%;height:auto;font:13px var(--sans)}
.narrow{display:none}
svg text{fill:var(--soft);paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg .moment{font-family:var(--mono);font-size:12px}
.axis{stroke:var(--line);stroke-width:3;stroke-linecap:round}
.after{fill:var(--shade)}
circle{fill:var(--soft);stroke:var(--card);stroke-width:2}
circle.user{fill:var(--blue)}circle.reply{fill:var(--violet)}circle.tool{fill:var(--amber)}
circle.recovery{fill:var(--green)}circle.hook{fill:var(--ink)}circle.failed{fill:var(--red)}
g.tool rect{fill:var(--amber)}g.reply rect{fill:var(--violet)}
g.death line{stroke:var(--red);stroke-width:2}
g.death path{stroke:var(--red);stroke-width:3.5;stroke-linecap:round;fill:none}
.steps{list-style:none;margin:1rem 0 0;padding:0}
.steps li{display:grid;grid-template-columns:1rem 7.5rem 6rem 1fr;gap:.25rem .75rem;
  padding:.3rem 0;align-items:baseline;overflow-wrap:anywhere}
.steps li::before{content:"";width:.65rem;height:.65rem;border-radius:50%;
  background:var(--soft);align-self:center}
.steps .user::before{background:var(--blue)}.steps .reply::before{background:var(--violet)}
.steps .tool::before{background:var(--amber)}.steps .death::before{background:var(--red)}
.steps .recovery::before{background:var(--green)}.steps .hook::before{background:var(--ink)}
.steps .failed::before{background:var(--red)}.steps .failed span:last-child{color:var(--red)}
.steps time,.step{color:var(--soft);font:.85rem var(--mono);font-variant-numeric:tabular-nums}
.step{text-align:right}
.steps .death span:last-child{color:var(--red);font-weight:600}
.words{display:grid;gap:.75rem;grid-template-columns:repeat(auto-fit,minmax(17rem,1fr))}
figure{margin:0;background:var(--card);border-radius:10px;padding:1rem 1.1rem;
  box-shadow:0 0 0 1px var(--line);min-width:0}
figcaption{color:var(--soft);font-size:.85rem;margin-bottom:.4rem}
blockquote{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
figure pre{margin:.4rem 0 0}
dl{margin:0;background:var(--card);border-radius:10px;box-shadow:0 0 0 1px var(--line)}
dl div{display:grid;grid-template-columns:9rem 1fr;gap:1rem;padding:.65rem 1.1rem;
  border-top:1px solid var(--line)}
dl div:first-child{border-top:0}
dt{color:var(--soft)}
dd{margin:0;min-width:0}
dd p{margin:0;overflow-wrap:anywhere}
dd .branch{font-family:var(--mono);font-size:.86em;white-space:pre-wrap}
.machine h2{font-size:1.1rem;letter-spacing:0;text-transform:none;color:var(--ink);
  margin-bottom:0;overflow-wrap:anywhere}
.machine .when{margin:.1rem 0 .75rem}
.machine dl div{grid-template-columns:15rem 1fr}
article{background:var(--card);border-radius:10px;box-shadow:0 0 0 1px var(--line);
  border-left:4px solid var(--line);padding:.7rem 1.1rem;margin:.6rem 0;break-inside:avoid-page}
article.user{border-left-color:var(--blue)}article.assistant{border-left-color:var(--violet)}
article.tool{border-left-color:var(--amber);background:var(--shade)}
article h3{margin:0;font-size:.85rem;color:var(--soft);font-weight:600;display:flex;
  flex-wrap:wrap;gap:.5rem;align-items:baseline}
article time{margin-left:auto;font-weight:400;font-variant-numeric:tabular-nums}
.mark{font-style:normal;font-weight:600;font-size:.75rem;padding:0 .5rem;border-radius:99px;
  background:var(--red-soft);color:var(--red)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.45rem 0 0}
article pre{font-family:var(--sans);font-size:1rem}
article.tool pre{font-family:var(--mono);font-size:.86rem}
footer{margin-top:3rem;color:var(--soft);font-size:.85rem;text-align:center}
@media (max-width:40rem){
  main{padding:1rem .75rem 3rem}
  h1{font-size:1.35rem}
  .wide{display:none}
  .narrow{display:block}
  header{padding:1rem 1.1rem}
  .steps li{grid-template-columns:1rem 1fr auto}
  .steps li span:last-child{grid-column:2/-1}
  .figures{grid-template-columns:1fr 1fr}
  dl div,.machine dl div{grid-template-columns:1fr;gap:.1rem}
}
@media print{
  :root{--paper:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--shade:#f3f3f3;
    --red:#a02010;--red-soft:#fff;--green:#1c6b3c;--green-soft:#fff;--amber:#8a5a10;
    --blue:#205080;--violet:#5a4080}
  body{font-size:11pt}
  main{max-width:none;padding:0}
  header,figure,dl,article,.figures li,.drawing{box-shadow:none;border:1px solid var(--line)}
  header{border-left:6px solid var(--red)}
  *{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
