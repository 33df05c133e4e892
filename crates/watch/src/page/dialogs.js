// Questions to the person, and copying.

// Asks in a dialog. Resolves to true, or the words where `value` is given, or null if the person declines.
function decide(words, yes, value) {
  const dialog = at("decision");
  at("decision-words").textContent = words;
  at("decision-yes").textContent = yes;
  at("decision-value").hidden = value === undefined;
  at("decision-value").value = value || "";
  dialog.showModal();
  if (value === undefined) at("decision-no").focus();
  else at("decision-value").select();
  return new Promise((resolve) => {
    let answer = null;
    at("decision-form").onsubmit = (event) => {
      event.preventDefault();
      answer = value === undefined ? true : at("decision-value").value.trim() || null;
      dialog.close();
    };
    dialog.onclose = () => resolve(answer);
  });
}

at("decision-no").addEventListener("click", () => at("decision").close());

// Copies a text, and says so on the button for a while.
async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copySelection(text);
  }
  const words = button.dataset.words || button.textContent;
  button.dataset.words = words;
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = words; }, 1500);
}

// Pages of other machines without TLS have no clipboard, but selections can be copied.
function copySelection(text) {
  const field = made("textarea");
  field.value = text;
  field.className = "unseen";
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}
