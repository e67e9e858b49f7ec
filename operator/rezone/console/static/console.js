"use strict";
// Live updates: the server renders sections again and sends those that have changed.
(() => {
  const address = document.body.dataset.events;
  const state = document.getElementById("live");
  if (!address || !state) return;
  let source = null;

  const say = (text) => {
    if (state.textContent !== text) state.textContent = text;
  };

  const replace = (event) => {
    const { id, html } = JSON.parse(event.data);
    const section = document.getElementById(id);
    if (!section) return;
    const active = document.activeElement;
    const focused = section.contains(active) ? active.id : "";
    const opened = [...section.querySelectorAll("details")].map((each) => each.open);
    section.innerHTML = html;
    section.querySelectorAll("details").forEach((each, at) => {
      if (at < opened.length) each.open = opened[at];
    });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const open = () => {
    if (source) return;
    source = new EventSource(address);
    source.addEventListener("open", () => say("live"));
    source.addEventListener("recovered", () => say("live"));
    source.addEventListener("problem", (event) => say("not live: " + JSON.parse(event.data).problem));
    source.addEventListener("section", replace);
    source.addEventListener("error", () => {
      say(source && source.readyState === EventSource.CLOSED ? "not live: reload the page" : "reconnecting");
    });
  };

  const close = () => {
    if (source) source.close();
    source = null;
    say("paused");
  };

  // A browser has few connections to one server: pages that nobody sees give theirs up.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
})();
