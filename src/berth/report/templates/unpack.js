"use strict";
// Unpacks what lies in the page as gzip in base64, which takes less than half the bytes of plain text and numbers.
async function unpacked(base64) {
  const characters = atob(base64);
  const packed = new Uint8Array(characters.length);
  // Twenty times as fast as Uint8Array.from with a function.
  for (let at = 0; at < packed.length; at++) packed[at] = characters.charCodeAt(at);
  return new Response(new Response(packed).body.pipeThrough(new DecompressionStream("gzip")));
}

// Resolves once Plotly is there; drawing waits for this. Where it cannot be had, the page says so.
const library = (async () => {
  if (typeof DecompressionStream === "undefined") {
    throw new Error(
      "this browser cannot unpack them: it has no DecompressionStream, which is in Chrome and Edge since 80, " +
        "Firefox since 113 and Safari since 16.4",
    );
  }
  const script = document.createElement("script");
  script.textContent = await (await unpacked(document.getElementById("plotly").textContent)).text();
  document.head.append(script);
})();
library.catch((error) => {
  const told = document.createElement("p");
  told.id = "problem";
  told.setAttribute("role", "alert");
  const complete = document.querySelector("table") ? " The tables are complete." : "";
  told.textContent = `Pictures are missing: ${error.message}.${complete}`;
  (document.querySelector("main") ?? document.body).prepend(told);
  for (const place of document.querySelectorAll("figure")) place.hidden = true;
});
