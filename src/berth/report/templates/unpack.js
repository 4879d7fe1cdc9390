"use strict";
// Plotly lies packed in the page, where it takes less than half as much; whoever draws waits for this.
const library = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
})();
