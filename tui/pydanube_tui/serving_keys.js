// The first key goes to the console, without a click before it; and so does the first after the window was left.
function listen() {
  document.querySelector("textarea.xterm-helper-textarea")?.focus();
}
new MutationObserver(listen).observe(document.body, { attributeFilter: ["class"] });
window.addEventListener("focus", listen);
