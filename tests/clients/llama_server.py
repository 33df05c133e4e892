"""What clients of llama.cpp's server rely on, checked against `sws serve`.

The cases are those of llama.cpp's own tests (tools/server/tests/unit) that apply to a server without its slots, in our
own words; crates/serve/tests/README.md lists the others with a reason each. Nothing here depends on what a model says.
"""

import json
import urllib.error
import urllib.request

PROMPT = "the meaning of life is"
CHAT = [{"role": "system", "content": "book"}, {"role": "user", "content": "what is the best book"}]
TOOL = {
    "name": "test",
    "parameters": {
        "type": "object",
        "properties": {"success": {"type": "boolean", "const": True}},
        "required": ["success"],
    },
}


class Server:
    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, path: str, body: dict) -> tuple[int, str]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, path: str, body: dict) -> dict:
        status, text = self.send(path, body)
        assert status == 200, (path, body, text)
        return json.loads(text)

    def refuse(self, path: str, body: dict) -> None:
        status, text = self.send(path, body)
        assert status == 400 and "error" in json.loads(text), (path, body, status, text)

    def stream(self, path: str, body: dict) -> list[dict]:
        status, text = self.send(path, {**body, "stream": True})
        assert status == 200, text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(event) for event in events if event != "[DONE]"]


def check_completion(server: Server) -> None:
    ask = {"prompt": PROMPT, "n_predict": 8, "seed": 42, "ignore_eos": True}
    whole = server.ask("/completion", ask)
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"] == 8, whole
    assert whole["stop"] is True and whole["stop_type"] == "limit" and whole["truncated"] is False, whole
    events = server.stream("/completion", ask)
    assert "".join(event["content"] for event in events) == whole["content"], events
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True], events
    assert all(type(token) is int for event in events[:-1] for token in event["tokens"]), events
    # The same seed gives the same text, whatever was cached; other seeds give others.
    for cached in [True, False]:
        assert server.ask("/completion", {**ask, "cache_prompt": cached})["content"] == whole["content"]
    texts = {server.ask("/completion", {**ask, "seed": seed, "temperature": 1})["content"] for seed in range(4)}
    assert len(texts) == 4, texts
    tokens = server.ask("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    assert server.ask("/completion", {**ask, "prompt": tokens})["content"] == whole["content"]
    several = {"prompt": [tokens, PROMPT], "max_tokens": 8, "temperature": 0}
    [one, other] = server.ask("/v1/completions", {**several, "prompt": [tokens, tokens]})["choices"]
    assert one["text"] == other["text"]
    for prompt in [PROMPT * 4000, [], [-1]]:
        server.refuse("/completion", {"prompt": prompt})
    ranked = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "logprobs": 10})
    logprobs = ranked["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 5 and all(logprob <= 0 for logprob in logprobs["token_logprobs"]), logprobs
    assert all(len(top) >= 10 for top in logprobs["top_logprobs"]), logprobs
    for broken in [{"dry_sequence_breakers": "a"}, {"dry_base": 0}, {"n": 0}, {"temperature": -1}]:
        server.refuse("/completion", {**ask, **broken})


def check_chat(server: Server) -> None:
    ask = {"messages": CHAT, "max_tokens": 8, "ignore_eos": True, "seed": 1}
    options = {"stream_options": {"include_usage": True}, "timings_per_token": True}
    # An answer that was just given takes no time, and has no timings.
    [first, *rest, last] = server.stream("/chat/completions", {**ask, **options})
    assert first["choices"][0]["delta"]["role"] == "assistant", first
    whole = server.ask("/chat/completions", ask)
    assert "cmpl" in whole["id"] and whole["system_fingerprint"], whole
    assert whole["usage"]["completion_tokens"] == 8 and whole["usage"]["prompt_tokens"] > 0, whole
    [choice] = whole["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length", choice
    assert all("role" not in event["choices"][0]["delta"] for event in rest), rest
    assert len({event["id"] for event in [first, *rest, last]}) == 1
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8 and "timings" in last, last
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in rest]
    assert "".join(deltas) == choice["message"]["content"]
    for messages in [
        None,
        "string",
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
    ]:
        server.refuse("/chat/completions", {"messages": messages})
    ranked = {**ask, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 10}
    [choice] = server.ask("/chat/completions", ranked)["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"], choice
    assert all(token["logprob"] <= 0 and token["bytes"] and len(token["top_logprobs"]) == 10 for token in tokens)
    letters = "abcdefghijklmnopqrstuvwxyz"
    ids = server.ask("/tokenize", {"content": letters})["tokens"]
    biased = {**ranked, "max_tokens": 30, "temperature": 1, "logit_bias": {str(token): -100 for token in ids}}
    [choice] = server.ask("/chat/completions", biased)["choices"]
    assert all(token["token"] not in set(letters) for token in choice["logprobs"]["content"]), choice
    prompt = server.ask("/apply-template", {"messages": CHAT})["prompt"]
    assert all(message["content"] in prompt for message in CHAT), prompt


def check_structure(server: Server) -> None:
    def content(**more) -> str:
        ask = {"messages": CHAT, "max_tokens": 40, "temperature": 0, **more}
        return server.ask("/chat/completions", ask)["choices"][0]["message"]["content"]

    assert content(response_format={"type": "json_object", "schema": {"const": "42"}}) == '"42"'
    named = {"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}
    assert content(response_format=named) == '"foooooo"'
    assert content(json_schema={"const": "42"}) == '"42"'
    assert content(grammar='root ::= "a"{5,5}') == "aaaaa"
    for kind in [
        {"type": "sound"},
        {"type": "json_object", "schema": 123},
        {"type": "json_object", "schema": {"type": 123}},
        {"type": "json_object", "schema": {"type": "hiccup"}},
    ]:
        server.refuse("/chat/completions", {"messages": CHAT, "response_format": kind})


def check_tool_calls(server: Server) -> None:
    tools = [{"type": "function", "function": TOOL}]
    ask = {"messages": CHAT, "max_tokens": 60, "tools": tools}
    demanded = {**ask, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = server.ask("/v1/chat/completions", demanded)["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "test" and json.loads(call["function"]["arguments"]) == {"success": True}, call
    assert choice["message"]["content"] in (None, "") and choice["finish_reason"] == "tool_calls", choice
    events = server.stream("/v1/chat/completions", demanded)
    calls = [event["choices"][0]["delta"].get("tool_calls") for event in events if event["choices"]]
    assert [call[0]["function"]["name"] for call in calls if call] == ["test"], events
    [choice] = server.ask("/v1/chat/completions", {**ask, "tool_choice": "none"})["choices"]
    assert choice["message"].get("tool_calls") is None, choice


def check_tokens(server: Server) -> None:
    tokens = server.ask("/tokenize", {"content": PROMPT})["tokens"]
    assert server.ask("/detokenize", {"tokens": tokens})["content"] == PROMPT
    pieces = server.ask("/tokenize", {"content": PROMPT, "with_pieces": True})["tokens"]
    assert [piece["id"] for piece in pieces] == tokens and all(piece["piece"] for piece in pieces), pieces


def check_infill(server: Server) -> None:
    """The tiny model has no tokens for this, so only refusals are seen here."""
    ask = {"input_prefix": "int main() {", "input_suffix": "}", "prompt": "int n = "}
    for extra in [{}, {"filename": "a"}, {"filename": 1, "text": "a"}, {"text": 2}]:
        server.refuse("/infill", {**ask, "input_extra": [extra]})
    server.refuse("/infill", {"input_prefix": "a"})


def check_messages(server: Server) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "no such city"}
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "bern"}}
    ask = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    message = server.ask("/v1/messages", ask)
    assert (message["type"], message["role"]) == ("message", "assistant") and "timings" not in message, message
    usage = message["usage"]
    assert all(type(usage[key]) is int for key in ["input_tokens", "output_tokens", "cache_read_input_tokens"]), usage
    kinds = [event["type"] for event in server.stream("/v1/messages", ask)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    parts = [{"type": "text", "text": "what is"}, {"type": "text", "text": " the answer"}]
    for messages in [
        [{"role": "user", "content": parts}],
        [*ask["messages"], {"role": "assistant", "content": "hi"}, {"role": "user", "content": "how are you"}],
        [*ask["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}],
        [*ask["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [*parts, result]}],
    ]:
        assert server.ask("/v1/messages", {**ask, "messages": messages, "system": "a"})["type"] == "message"
    counted = server.ask("/v1/messages/count_tokens", {"model": "tiny", "messages": ask["messages"]})
    assert list(counted) == ["input_tokens"] and counted["input_tokens"] > 0, counted
    for broken in [{"messages": None}, {"messages": [], "max_tokens": 8}, {"max_tokens": "many"}]:
        server.refuse("/v1/messages", {**ask, **broken})


def check_responses(server: Server) -> None:
    ask = {"input": CHAT, "max_output_tokens": 8, "temperature": 0}
    whole = server.ask("/v1/responses", ask)
    assert whole["id"].startswith("resp") and whole["object"] == "response", whole
    events = server.stream("/v1/responses", ask)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers)), numbers


def check(url: str) -> None:
    server = Server(url)
    for part in [
        check_completion,
        check_chat,
        check_structure,
        check_tool_calls,
        check_tokens,
        check_infill,
        check_messages,
        check_responses,
    ]:
        part(server)
