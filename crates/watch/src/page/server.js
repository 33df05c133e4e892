// Calls of this server: its key, its events and its errors.

let key = sessionStorage.getItem("sws-key") || "";
const headers = (more) => key ? { ...more, Authorization: "Bearer " + key } : { ...more };

// Server-sent events of a response, whose header can have a key.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      let name = "message", data = "";
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      rest = rest.slice(end + 2);
      if (data) yield [name, data];
    }
  }
}

async function failureOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "status " + response.status;
  }
}
