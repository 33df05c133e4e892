#!/usr/bin/env python3
"""Runs published clients against `sws serve`, each with streams, reasoning and tool calls.

    pip install openai anthropic
    tests/clients/run.py target/release/sws

langchain-openai, litellm and lm_eval are checked where they are installed.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

import anthropic
import model
import openai
import pydantic

OPTIONS = {"temperature": 0, "extra_body": {"logit_bias": {str(model.TOKEN): 100}}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
ASKED = [{"role": "user", "content": "where"}]


class Animal(pydantic.BaseModel):
    """What answers of a form say. Its texts are short, whatever a model makes of them."""

    kind: typing.Literal["wolf", "cat"]
    houses: typing.Literal[1, 2, 3]
    is_hungry: bool
    friends: typing.Literal["none", "a mouse"] | None


def check_forms(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    name = client.models.list().data[0].id
    for seed in range(3):
        ask = {"model": name, "messages": ASKED, "seed": seed, "response_format": Animal, "max_tokens": 200}
        answer = client.chat.completions.parse(**ask).choices[0]
        assert isinstance(answer.message.parsed, Animal) and answer.finish_reason == "stop", answer
        with client.chat.completions.stream(**ask) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message
        assert streamed.parsed == answer.message.parsed, streamed
        response = client.responses.parse(
            model=name, input="where", text_format=Animal, max_output_tokens=200, extra_body={"seed": seed}
        )
        assert isinstance(response.output_parsed, Animal), response
        body = {"guided_regex": "[a-c]{3}", "seed": seed}
        text = client.completions.create(model=name, prompt="where", max_tokens=9, extra_body=body).choices[0].text
        assert len(text) == 3 and set(text) <= set("abc"), text
        schema = {"type": "json_schema", "schema": anthropic.transform_schema(Animal)}
        message = anthropic.Anthropic(base_url=url, api_key="any").messages.create(
            model=name,
            max_tokens=200,
            messages=ASKED,
            extra_body={"output_config": {"format": schema}, "seed": seed},
        )
        assert message.stop_reason == "end_turn", message
        Animal.model_validate_json(message.content[0].text)
    try:
        bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wolf"}}}
        client.chat.completions.create(model=name, messages=ASKED, response_format=bad)
        raise AssertionError("it was accepted")
    except openai.BadRequestError as error:
        assert error.param == "response_format", error


def check_openai(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    name = client.models.list().data[0].id
    assert client.models.retrieve(name).id == name
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    ask = {"model": name, "messages": ASKED, "tools": tools, "stop": "STOP", "max_tokens": 4, **OPTIONS}

    def check_chat(choice) -> None:
        assert choice.finish_reason == "tool_calls", choice
        assert choice.message.content == model.TEXT and choice.message.reasoning_content == model.THOUGHT, choice
        [call] = choice.message.tool_calls
        assert call.function.name == "weather" and json.loads(call.function.arguments) == model.ARGUMENTS, call

    answer = client.chat.completions.create(**ask)
    check_chat(answer.choices[0])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    with client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.usage.total_tokens == answer.usage.total_tokens
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content == model.TEXT
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == model.ARGUMENTS

    ask = {"model": name, "prompt": "where", "max_tokens": 3, "temperature": 0, "logprobs": 2}
    whole = client.completions.create(**ask)
    streamed = client.completions.create(**ask, stream=True)
    assert "".join(part.choices[0].text for part in streamed) == whole.choices[0].text
    assert len(whole.choices[0].logprobs.token_logprobs) == 3

    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    options = {"temperature": 0, "extra_body": {**OPTIONS["extra_body"], "stop": "STOP"}}
    ask = {"model": name, "input": "where", "tools": tools, "max_output_tokens": 16, **options}
    answer = client.responses.create(**ask)
    assert answer.output_text == model.TEXT and answer.status == "completed", answer
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"], answer
    with client.responses.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= kinds, kinds
    assert json.loads(final.output[2].arguments) == model.ARGUMENTS
    back = [*final.output, {"type": "function_call_output", "call_id": final.output[2].call_id, "output": "sun"}]
    assert client.responses.create(**{**ask, "input": [*ASKED, *back]}).output_text == model.TEXT

    for broken, error in [
        ({"model": "nonesuch"}, openai.NotFoundError),
        ({"max_tokens": 0, "messages": []}, openai.BadRequestError),
        ({"response_format": {"type": "structural_tag"}}, openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": name, "messages": ASKED, **broken})
        except error:
            continue
        raise AssertionError(broken)


def check_anthropic(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="any")
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    ask = {"model": "tiny", "messages": ASKED, "tools": tools}
    count = client.messages.count_tokens(**ask).input_tokens
    ask = {**ask, "max_tokens": 4, "stop_sequences": ["STOP"]}
    ask["extra_body"] = {**OPTIONS["extra_body"], "temperature": 0}

    def check_message(message) -> None:
        assert message.stop_reason == "tool_use", message
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"], message
        thinking, text, call = message.content
        assert (thinking.thinking, text.text) == (model.THOUGHT, model.TEXT)
        assert (call.name, call.input) == ("weather", model.ARGUMENTS)

    message = client.messages.create(**ask)
    check_message(message)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count
    with client.messages.stream(**ask) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == model.TEXT
    check_message(final)
    result = {"type": "tool_result", "tool_use_id": final.content[2].id, "content": "sun"}
    back = [*ASKED, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    check_message(client.messages.create(**{**ask, "messages": back}))
    try:
        client.messages.create(**{**ask, "messages": []})
    except anthropic.BadRequestError:
        return
    raise AssertionError("no messages, no refusal")


def check_langchain(url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="any", model="tiny", max_tokens=4, stop=["STOP"], **OPTIONS)
    chat = chat.bind_tools([{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}])
    answer = chat.invoke("where")
    streamed = None
    for chunk in chat.stream("where"):
        streamed = chunk if streamed is None else streamed + chunk
    for message in [answer, streamed]:
        assert message.content == model.TEXT, message
        [call] = message.tool_calls
        assert (call["name"], call["args"]) == ("weather", model.ARGUMENTS), message
    back = [HumanMessage("where"), answer, ToolMessage("sun", tool_call_id=answer.tool_calls[0]["id"])]
    assert chat.invoke(back).content == model.TEXT


def check_litellm(url: str) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    ask = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "any", "messages": ASKED, "max_tokens": 4}
    ask |= {"stop": ["STOP"], **OPTIONS}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    message = litellm.completion(**ask, tools=tools).choices[0].message
    assert (message.content, message.reasoning_content) == (model.TEXT, model.THOUGHT), message
    assert json.loads(message.tool_calls[0].function.arguments) == model.ARGUMENTS, message
    chunks = [chunk.choices[0].delta for chunk in litellm.completion(**ask, stream=True)]
    assert "".join(chunk.content or "" for chunk in chunks).startswith(model.TEXT)


def check_lm_eval(url: str) -> None:
    """Tokens of the server itself; a text that the model prefers, and one that it does not."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    ask = {"base_url": f"{url}/v1/completions", "model": "tiny", "tokenizer_backend": "remote", "max_length": 64}
    harness = LocalCompletionsAPI(**ask, batch_size=2)
    until = {"until": ["STOP"], "max_gen_toks": 1, "temperature": 0}
    [text] = harness.generate_until([Instance("generate_until", {}, ("where", until), 0)])
    texts = [("where", "abc"), ("where are you", " is it")]
    found = harness.loglikelihood([Instance("loglikelihood", {}, text, n) for n, text in enumerate(texts)])
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    for (context, continuation), (logprob, is_greedy) in zip(texts, found):
        prompt = context + continuation
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        logprobs = answer.choices[0].logprobs
        assert sum(logprobs.token_logprobs[-len(continuation) :]) == logprob and not is_greedy
    assert text


CLIENTS = {"openai": check_openai, "anthropic": check_anthropic}
OPTIONAL = {"langchain-openai": check_langchain, "litellm": check_litellm, "lm_eval": check_lm_eval}


def main() -> None:
    sws = sys.argv[1] if len(sys.argv) > 1 else "target/release/sws"
    with tempfile.TemporaryDirectory() as temp:
        directory = Path(temp) / "tiny"
        model.make(directory)
        command = [sws, "serve", directory, "--resident", "--port", "0", "--quiet"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            url = next(line.split()[3].rstrip(";") for line in server.stderr if "listening on" in line)
            next(line for line in server.stderr if "ready" in line)
            installed = {name: c for name, c in OPTIONAL.items() if importlib.util.find_spec(name.replace("-", "_"))}
            check_forms(url)
            print("forms of answers: as they should")
            for client, check in (CLIENTS | installed).items():
                check(url)
                print(f"{client} {importlib.metadata.version(client)}: as it should")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
