#!/usr/bin/env python3
"""Runs published clients against `sws serve`, each with streams, reasoning and tool calls.

    pip install openai anthropic
    tests/clients/run.py target/release/sws

ollama, langchain-ollama, langchain-openai, litellm, instructor, pydantic-ai, openai-agents and lm_eval are checked where they are
installed.
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
import llama_server
import model
import openai
import pydantic

OPTIONS = {"temperature": 0, "extra_body": {"logit_bias": {str(model.TOKEN): 100}}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
ASKED = [{"role": "user", "content": "where"}]


class Animal(pydantic.BaseModel):
    """What answers of a form say. Its texts are short, whatever a model makes of them."""

    # Without this an untrained model may add properties until its tokens are spent.
    model_config = pydantic.ConfigDict(extra="forbid")

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


def check_demanded_calls(url: str) -> None:
    """A call that is demanded keeps to the schema of its tool, strict or not."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    schema = Animal.model_json_schema()
    named = {"type": "function", "function": {"name": "animal"}}
    tools = [{"type": "function", "function": {"name": "animal", "parameters": schema}}]
    for choice in ["required", named]:
        ask = {"model": "tiny", "messages": ASKED, "tools": tools, "tool_choice": choice, "max_tokens": 200}
        [call] = client.chat.completions.create(**ask).choices[0].message.tool_calls
        Animal.model_validate_json(call.function.arguments)
    function = {"name": "animal", "parameters": schema}
    ask = {"functions": [function], "function_call": {"name": "animal"}, "max_tokens": 200}
    choice = client.chat.completions.create(model="tiny", messages=ASKED, **ask).choices[0]
    assert choice.finish_reason == "function_call", choice
    Animal.model_validate_json(choice.message.function_call.arguments)
    tool = {"type": "function", "name": "animal", "parameters": schema, "strict": False}
    ask = {"input": "where", "tools": [tool], "tool_choice": "required", "max_output_tokens": 200}
    response = client.responses.create(model="tiny", **ask)
    Animal.model_validate_json(response.output[0].arguments)
    # Clients of 2025 do not count.
    if hasattr(client.responses, "input_tokens"):
        assert client.responses.input_tokens.count(model="tiny", input="where").input_tokens > 0
    message = anthropic.Anthropic(base_url=url, api_key="any").messages.create(
        model="tiny",
        max_tokens=200,
        messages=ASKED,
        tools=[{"name": "animal", "input_schema": schema}],
        tool_choice={"type": "any"},
    )
    Animal.model_validate(message.content[0].input)


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


def check_ollama(url: str) -> None:
    import ollama

    client = ollama.Client(host=url)
    [known] = client.list().models
    assert client.show(known.model).capabilities[0] == "completion"
    assert client.ps().models[0].model == known.model
    options = {"num_predict": 6, "temperature": 0, "num_ctx": 2048}
    whole = client.chat(known.model, ASKED, options=options)
    assert whole.done_reason == "length" and whole.eval_count == 6, whole
    parts = client.chat(known.model, ASKED, options=options, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    text = client.generate(known.model, "where", options=options)
    assert text.response == whole.message.content, text
    shaped = client.chat(known.model, ASKED, format=Animal.model_json_schema(), options={"num_predict": 200})
    Animal.model_validate_json(shaped.message.content)
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    calls = [{"function": {"name": "weather", "arguments": model.ARGUMENTS}}]
    back = [*ASKED, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_name": "weather", "content": "sun"}]
    assert client.chat(known.model, back, tools=[tool], options=options).done
    try:
        client.chat("nonesuch", ASKED)
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "nonesuch" in error.error, error
        return
    raise AssertionError("an unknown model answers")


def check_langchain_ollama(url: str) -> None:
    from langchain_ollama import ChatOllama

    chat = ChatOllama(base_url=url, model="tiny", num_predict=6, temperature=0)
    whole = chat.invoke("where")
    assert "".join(part.content for part in chat.stream("where")) == whole.content
    shaped = ChatOllama(base_url=url, model="tiny", num_predict=200)
    assert isinstance(shaped.with_structured_output(Animal, method="json_schema").invoke("where"), Animal)


def check_instructor(url: str) -> None:
    import instructor

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    # Other modes show the schema to the model, whose context is short.
    asked = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    ask = {"model": "tiny", "messages": ASKED, "max_tokens": 200, "max_retries": 0}
    assert isinstance(asked.chat.completions.create(response_model=Animal, **ask), Animal)


def check_pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any"))
    agent = Agent(chat, output_type=Animal, model_settings={"max_tokens": 200})
    assert isinstance(agent.run_sync("where").output, Animal)


def check_agents(url: str) -> None:
    import asyncio

    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any")

    async def run(kind) -> None:
        body = {**OPTIONS["extra_body"], "stop": "STOP"}
        settings = ModelSettings(max_tokens=16, temperature=0, extra_body=body)
        agent = Agent(name="a", model=kind(model="tiny", openai_client=client), model_settings=settings)
        whole = await Runner.run(agent, "where")
        streamed = Runner.run_streamed(agent, "where")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == whole.final_output, streamed.final_output
        assert whole.final_output.startswith(model.TEXT), whole.final_output

    for kind in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        asyncio.run(run(kind))


CLIENTS = {"openai": check_openai, "anthropic": check_anthropic}
# By the name of the package: the module, and the check.
OPTIONAL = {
    "ollama": ("ollama", check_ollama),
    "langchain-ollama": ("langchain_ollama", check_langchain_ollama),
    "langchain-openai": ("langchain_openai", check_langchain),
    "litellm": ("litellm", check_litellm),
    "instructor": ("instructor", check_instructor),
    "pydantic-ai-slim": ("pydantic_ai", check_pydantic_ai),
    "openai-agents": ("agents", check_agents),
    "lm_eval": ("lm_eval", check_lm_eval),
}


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
            installed = {name: check for name, (module, check) in OPTIONAL.items() if importlib.util.find_spec(module)}
            check_forms(url)
            print("structured output: as it should")
            check_demanded_calls(url)
            print("demanded calls: as they should")
            llama_server.check(url)
            print("llama.cpp's cases: as they should")
            for client, check in (CLIENTS | installed).items():
                check(url)
                print(f"{client} {importlib.metadata.version(client)}: as it should")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
