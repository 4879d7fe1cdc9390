// How the search of these pages ranks what it found: a task comes before an explanation, long lists come last, and
// of equals first the page whose title has more of the words.
var Scorer = { // Sphinx declares it by `var` too
  score: ([page, title, , , score]) => {
    const places = [["how-to/index", -20], ["how-to/", 40], ["first-steps/", 5], ["reference/", -5], ["gallery", -10], ["changelog", -20]];
    const words = (text) => text.toLowerCase().match(/\w{3,}/g) ?? [];
    const asked = words(new URLSearchParams(location.search).get("q") ?? "");
    const named = asked.filter((each) => words(title).some((word) => word.startsWith(each) || each.startsWith(word)));
    return score + named.length + (places.find(([begin]) => page.startsWith(begin))?.[1] ?? 0);
  },
  // As Sphinx has them.
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
