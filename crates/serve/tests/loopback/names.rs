//! Names within objects that ask for structured output, a certificate or tools: an unknown one is refused,
//! in each interface, and those that published clients send are not.

use serde_json::{Value, json};

use crate::client::{config, serve};
use crate::structured::{model, with};
use crate::tools::TEMPLATE;

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";
const TEMPLATES: &str = "/apply-template";
/// Interfaces with tools.
const TOOLS: &[&str] = &[CHATS, MESSAGES, COUNT, RESPONSES, TEMPLATES];

/// A request that is answered at once.
fn base(path: &str) -> Value {
    match path {
        COMPLETIONS => json!({"prompt": "a", "max_tokens": 1}),
        RESPONSES => json!({"input": "a", "max_output_tokens": 1}),
        _ => json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    }
}

#[test]
fn unknown_names_and_empty_structures_are_refused() {
    let (_temp, dir) = model();
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    let server = serve(&dir, 1, config());
    let schema = json!({"type": "object"});
    let function = json!({"name": "f", "parameters": schema});
    let tool = |more: Value| json!([with(json!({"type": "function", "function": function}), more)]);
    let chosen = |choice: Value| json!({"tools": tool(json!({})), "tool_choice": choice});
    let both = &[CHATS, COMPLETIONS][..];
    let messages = &[MESSAGES, COUNT][..];
    let all = &[CHATS, COMPLETIONS, MESSAGES, RESPONSES][..];
    for (paths, more, words) in [
        (both, json!({"structured_outputs": {"rejex": "a"}}), "`rejex`"),
        (both, json!({"structured_outputs": {"type": "x"}}), "`type`"),
        (
            both,
            json!({"structured_outputs": {"disable_additional_properties": true}}),
            "not supported",
        ),
        (all, json!({"structured_outputs": {}}), "structured_outputs"),
        (all, json!({"structural_tag": "{}"}), "structural_tag"),
        (all, json!({"guided_regex": ""}), "guided_regex"),
        (all, json!({"guided_grammar": ""}), "guided_grammar"),
        (all, json!({"grammar": ""}), "grammar"),
        (all, json!({"guided_choice": []}), "guided_choice"),
        (all, json!({"guided_rejex": "a"}), "guided_rejex"),
        (both, json!({"guided_json": ""}), "guided_json"),
        (both, json!({"response_format": {}}), "type"),
        (both, json!({"response_format": {"type": "json_object", "skema": {}}}), "`skema`"),
        (
            both,
            json!({"response_format": {"type": "json_schema", "json_schema": {"skema": {}}}}),
            "`skema`",
        ),
        (all, json!({"x_sws": {"certifikate": true}}), "`certifikate`"),
        (&[RESPONSES], json!({"text": {"fromat": {"type": "text"}}}), "`fromat`"),
        (
            &[RESPONSES],
            json!({"text": {"format": {"type": "json_schema", "skema": {}}}}),
            "`skema`",
        ),
        (messages, json!({"output_config": {"fromat": {}}}), "`fromat`"),
        (messages, json!({"output_config": 3}), "expected an object"),
        (messages, json!({"output_format": 3}), "output_format"),
        (messages, json!({"output_format": {}}), "output_format has no type"),
        (messages, json!({"output_format": {"type": "json_schema", "skema": {}}}), "`skema`"),
        (
            messages,
            json!({"output_format": {"type": "text"}, "output_config": {"format": {"type": "text"}}}),
            "only one structure",
        ),
        (TOOLS, json!({"tools": 3}), "expected"),
        (TOOLS, json!({"tools": [-1]}), "tools[0] is not an object"),
        (TOOLS, json!({"tools": [{}]}), "tools[0] has no name"),
        (TOOLS, json!({"tools": [{"type": "function"}]}), "tools[0] has no `function`"),
        (TOOLS, json!({"tools": tool(json!({"strikt": true}))}), "`strikt`"),
        (TOOLS, json!({"tools": tool(json!({"type": "functoin"}))}), "`functoin`"),
        (
            TOOLS,
            json!({"tools": tool(json!({"function": {"name": "f", "paramters": {}}}))}),
            "`paramters`",
        ),
        (TOOLS, json!({"tools": [{"name": "f", "input_shema": {}}]}), "`input_shema`"),
        (TOOLS, json!({"tools": [{"type": "web_search"}]}), "none of the tools is a function"),
        (
            TOOLS,
            chosen(json!({"type": "auto", "disable_parallel_tool_us": true})),
            "`disable_parallel_tool_us`",
        ),
        (
            TOOLS,
            chosen(json!({"type": "allowed_tools", "allowed_tools": {"moode": "required"}})),
            "`moode`",
        ),
        (TOOLS, chosen(json!(3)), "expected a word or an object"),
    ] {
        for path in paths {
            let refused = server.post(path, &with(base(path), more.clone()));
            assert_eq!(refused.status, 400, "{path} {more}: {refused:?}");
            let message = &refused.json()["error"]["message"];
            assert!(message.as_str().unwrap().contains(words), "{path} {more}: {message}");
        }
    }
}

#[test]
fn names_that_clients_send_are_accepted() {
    let (_temp, dir) = model();
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    let server = serve(&dir, 1, config());
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let named = json!({"name": "a", "description": "b", "schema": schema, "strict": false});
    let format = with(json!({"type": "json_schema"}), named.clone());
    let both = &[CHATS, COMPLETIONS][..];
    let messages = &[MESSAGES, COUNT][..];
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    for (paths, more) in [
        (both, json!({"response_format": {"type": "json_schema", "json_schema": named}})),
        (both, json!({"response_format": {"type": "text"}})),
        (
            both,
            json!({"structured_outputs": {"regex": "a+", "disable_any_whitespace": true, "disable_fallback": true, "disable_additional_properties": false}}),
        ),
        (both, json!({"structured_outputs": null, "guided_regex": null, "grammar": null})),
        (both, json!({"guided_decoding_backend": "auto", "guided_regex": "a+"})),
        (both, json!({"x_sws": {"certificate": false}})),
        (&[RESPONSES], json!({"text": {"format": format, "verbosity": "low"}})),
        (&[RESPONSES], json!({"text": {}, "x_sws": {}})),
        (
            messages,
            json!({"output_config": {"effort": "low", "format": null, "task_budget": {"type": "tokens", "total": 9}}}),
        ),
        (messages, json!({"output_format": {"type": "json_schema", "schema": schema}})),
        (TOOLS, json!({"tools": []})),
        (TOOLS, json!({"tools": null, "tool_choice": "auto"})),
        (
            TOOLS,
            json!({"tools": [{"type": "function", "function": {"name": "f", "description": "a", "parameters": schema, "strict": true}}]}),
        ),
        (
            TOOLS,
            json!({"tools": [{"type": "function", "name": "f", "description": "a", "parameters": schema, "strict": false}]}),
        ),
        (
            TOOLS,
            json!({"tools": [
                {"type": "custom", "name": "f", "input_schema": schema, "cache_control": cached, "input_examples": [{}]},
                {"name": "g", "description": "a", "input_schema": schema, "eager_input_streaming": true, "defer_loading": false},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 8, "cache_control": cached},
                {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
            ], "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
        ),
        (TOOLS, json!({"tools": [{"type": "web_search"}], "tool_choice": "none"})),
        (
            TOOLS,
            json!({"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}}),
        ),
    ] {
        for path in paths {
            let answer = server.post(path, &with(base(path), more.clone()));
            assert_eq!(answer.status, 200, "{path} {more}: {answer:?}");
        }
    }
}
