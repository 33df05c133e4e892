// Settings of requests: a system message and numbers, kept in this browser, and the choice of a model.

// Fields of a request, and the numbers they may have.
const NUMBERS = [
  { name: "temperature", words: "Temperature", min: 0, step: "any" },
  { name: "top_p", words: "Top-p", min: 0, max: 1, step: "any" },
  { name: "top_k", words: "Top-k (-1: all)", min: -1, step: 1 },
  { name: "min_p", words: "Min-p", min: 0, max: 1, step: "any" },
  { name: "seed", words: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, without: "random" },
  { name: "max_tokens", words: "Most new tokens", min: 1, step: 1, without: "until it ends" },
];

let settings = storedSettings();
// Fields of the form, by name.
const fields = new Map();

function storedSettings() {
  try {
    return JSON.parse(localStorage.getItem("sws-settings")) || {};
  } catch {
    return {};
  }
}

// What a request has of the settings, beside its messages.
function requestSettings() {
  const given = {};
  for (const { name } of NUMBERS) if (Number.isFinite(settings[name])) given[name] = settings[name];
  if (!at("model-choice").hidden) given.model = at("model-choice").value;
  return given;
}

for (const { name, words, min, max, step, without } of NUMBERS) {
  const label = made("label", words);
  const field = made("input");
  Object.assign(field, { id: "set-" + name, type: "number", min, max: max ?? "", step });
  field.placeholder = without || "";
  label.htmlFor = field.id;
  const box = made("div");
  box.append(label, field);
  at("set-numbers").append(box);
  fields.set(name, field);
}

// Shows the server's own values where the person has chosen none.
function showDefaults(defaults) {
  for (const { name, without } of NUMBERS) {
    const value = defaults?.params?.[name];
    if (value !== undefined && value !== null) fields.get(name).placeholder = String(Math.round(1e6 * value) / 1e6);
    else fields.get(name).placeholder = without || "";
  }
}

// The models of the server: a choice if there are several.
function showModels(models) {
  const select = at("model-choice");
  const names = models.map((model) => model.id);
  const before = select.value || localStorage.getItem("sws-model");
  select.textContent = "";
  for (const { id, status } of models) {
    const option = made("option", status && status.value !== "loaded" ? id + " (not loaded)" : id);
    option.value = id;
    select.append(option);
  }
  if (names.includes(before)) select.value = before;
  select.hidden = names.length < 2;
}

at("model-choice").addEventListener("change", () => {
  localStorage.setItem("sws-model", at("model-choice").value);
  knowing = about();
});

at("settings-open").addEventListener("click", () => {
  at("set-system").value = settings.system || "";
  for (const [name, field] of fields) field.value = settings[name] ?? "";
  at("settings").showModal();
});
at("settings-cancel").addEventListener("click", () => at("settings").close());
at("settings-reset").addEventListener("click", () => {
  at("set-system").value = "";
  for (const field of fields.values()) field.value = "";
});
at("settings-form").addEventListener("submit", (event) => {
  event.preventDefault();
  settings = {};
  if (at("set-system").value.trim()) settings.system = at("set-system").value;
  for (const [name, field] of fields) if (field.value !== "") settings[name] = field.valueAsNumber;
  localStorage.setItem("sws-settings", JSON.stringify(settings));
  at("settings").close();
});
