"use strict";
// Unpacks what lies in the page as gzip in base64, which takes less than half the bytes of plain text and numbers.
async function unpacked(base64) {
  const characters = atob(base64);
  const packed = new Uint8Array(characters.length);
  // Twenty times as fast as Uint8Array.from with a function.
  for (let at = 0; at < packed.length; at++) packed[at] = characters.charCodeAt(at);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

// Resolves once Plotly is there; drawing waits for this.
const library = (async () => {
  const script = document.createElement("script");
  script.textContent = await (await unpacked(document.getElementById("plotly").textContent)).text();
  document.head.append(script);
})();
