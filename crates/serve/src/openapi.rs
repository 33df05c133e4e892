//! `/openapi.json`: the endpoints of the router, and the fields of its parsers.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::fields::Fields as Common;
use crate::names::names;
use crate::route::{Route, RouteFields};

/// Types of fields, with their descriptions. A field that interfaces read differently has any type.
#[rustfmt::skip]
const KINDS: [(&str, &str, &str); 88] = [
    ("add_generation_prompt", "boolean", "end the prompt with the beginning of an answer"),
    ("add_special", "boolean", "add the special tokens of a text"),
    ("add_special_tokens", "boolean", "add the special tokens of a text"),
    ("background", "boolean", "only false is supported"),
    ("best_of", "integer", "only the value of n is supported"),
    ("chat_template_kwargs", "object", "variables of the chat template"),
    ("content", "string", "the text"),
    ("context", "array", "ignored: tokens of an earlier answer"),
    ("continue_final_message", "boolean", "only false is supported"),
    ("dimensions", "integer", "number of first numbers of a vector to keep"),
    ("dry_allowed_length", "integer", "repeated tokens from which on DRY has a penalty"),
    ("dry_base", "number", "growth of the penalty of DRY with each repeated token"),
    ("dry_multiplier", "number", "penalty of DRY for tokens that would continue a repetition; 0 for none"),
    ("dry_penalty_last_n", "integer", "last tokens that DRY searches; -1 for all"),
    ("dry_sequence_breakers", "array", "texts over which no repetition reaches"),
    ("echo", "boolean", "make the prompt a part of the answer"),
    ("encoding_format", "string", "`float` or `base64`"),
    ("format", "any", "structured output: `json`, or a JSON schema"),
    ("frequency_penalty", "number", "penalty of a token for each time that it came before"),
    ("function_call", "any", "the choice among functions"),
    ("functions", "array", "tools, as older clients write them"),
    ("grammar", "string", "structured output: a grammar"),
    ("guided_choice", "array", "structured output: one of some texts"),
    ("guided_grammar", "string", "structured output: a grammar"),
    ("guided_json", "any", "structured output: a JSON schema"),
    ("guided_regex", "string", "structured output: a regular expression"),
    ("ignore_eos", "boolean", "continue after the end-of-text token"),
    ("images", "array", "refused unless empty"),
    ("include", "array", "more parts of the answer; none is supported"),
    ("input", "any", "the conversation: a text, or a list of items; or texts, as text or as tokens"),
    ("input_extra", "array", "files that come first: `text` and `filename` of each"),
    ("input_prefix", "string", "the text before the answer"),
    ("input_suffix", "string", "the text after the answer"),
    ("instructions", "string", "the system's message"),
    ("json_schema", "any", "structured output: a JSON schema"),
    ("keep_alive", "any", "time for which one of several models stays loaded"),
    ("logit_bias", "object", "numbers added to the logits of tokens by id"),
    ("logprobs", "any", "probabilities of the tokens: a number of others beside each, or in chats true"),
    ("max_completion_tokens", "integer", "new tokens"),
    ("max_output_tokens", "integer", "new tokens"),
    ("max_tokens", "integer", "new tokens"),
    ("messages", "array", "the conversation"),
    ("metadata", "object", "names and values that the answer repeats"),
    ("min_p", "number", "least probability of a token, as a part of the largest"),
    ("modalities", "array", "only text is supported"),
    ("model", "string", "id of the model, its last part, or an alias"),
    ("n", "integer", "texts for each prompt"),
    ("n_predict", "integer", "new tokens; -1 for as many as the context has room for"),
    ("name", "string", "the same as model"),
    ("options", "object", "sampling, in Ollama's names"),
    ("output_config", "object", "structured output in `format`"),
    ("output_format", "object", "structured output"),
    ("parallel_tool_calls", "boolean", "false for one call at most"),
    ("presence_penalty", "number", "penalty of a token that came before"),
    ("previous_response_id", "string", "a response that was kept, which the conversation continues"),
    ("prompt", "any", "a text, texts, the tokens of one, or those of several"),
    ("raw", "boolean", "continue the prompt as it is, without the chat template"),
    ("reasoning", "object", "`effort` is a variable of the chat template"),
    ("reasoning_effort", "string", "a variable of the chat template"),
    ("repeat_penalty", "number", "the same as repetition_penalty"),
    ("repetition_penalty", "number", "factor for the logits of tokens that came before"),
    ("response_format", "object", "structured output"),
    ("return_progress", "boolean", "tell the progress of the prompt in a stream"),
    ("samplers", "array", "ignored"),
    ("seed", "integer", "the same seed gives the same text"),
    ("stop", "any", "a text or texts before which the answer ends"),
    ("stop_sequences", "any", "the same as stop"),
    ("store", "boolean", "false to forget the response, where the server keeps them"),
    ("stream", "boolean", "send events as the answer is made"),
    ("stream_options", "object", "`include_usage`"),
    ("structured_outputs", "object", "structured output"),
    ("suffix", "string", "the text after the answer, for models that fill in"),
    ("system", "any", "the system's message"),
    ("temperature", "number", "0 for the likeliest token"),
    ("template", "string", "refused unless empty"),
    ("text", "object", "structured output in `format`"),
    ("think", "any", "whether the model thinks before it answers, or how much"),
    ("thinking", "object", "`type` decides about enable_thinking, a variable of the chat template"),
    ("tokens", "array", "token ids"),
    ("tool_choice", "any", "auto, none, required, any, a tool, or allowed_tools"),
    ("tools", "array", "tools that the model is shown"),
    ("top_k", "integer", "number of the likeliest tokens that are drawn from"),
    ("top_logprobs", "integer", "number of likeliest tokens beside each"),
    ("top_p", "number", "share of the probability that is drawn from"),
    ("truncate", "boolean", "ignored: texts that are too long are refused"),
    ("verbose", "boolean", "ignored"),
    ("with_pieces", "boolean", "the text of each token beside its id"),
    ("x_sws", "object", "`certificate`: true for the certificate of the answer"),
];

/// The OpenAPI description of a server with this model and these endpoints.
pub(crate) fn description(model: &str, routes: &[Route]) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        // The last part of a path may contain slashes, for which there is no notation.
        let path = route.path.replace("{*", "{");
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        operations[route.method] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": format!("sws serve: {model}"),
            "version": env!("CARGO_PKG_VERSION"),
            "description": "docs/serve.md has the meaning of all fields.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.about,
        "responses": {
            "200": {"description": "the answer"},
            "default": {"description": "an error, with a message in `error`"},
        },
    });
    if let Some((_, rest)) = route.path.split_once('{') {
        let name = rest.split('}').next().unwrap_or(rest).trim_start_matches('*');
        let schema = json!({"type": "string"});
        operation["parameters"] =
            json!([{"name": name, "in": "path", "required": true, "schema": schema}]);
    }
    let fields = fields(route.body);
    if !fields.is_empty() {
        let properties: Map<String, Value> =
            fields.into_iter().map(|name| (name.to_owned(), schema(name))).collect();
        let schema = json!({"type": "object", "properties": properties});
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// The names of the fields of a request.
fn fields(body: RouteFields) -> BTreeSet<&'static str> {
    let lists = match body {
        RouteFields::None => Vec::new(),
        RouteFields::Own(own) => own(),
        RouteFields::All(own) => [own(), vec![names::<Common>()]].concat(),
    };
    lists.into_iter().flatten().copied().collect()
}

/// The schema of a field.
fn schema(name: &str) -> Value {
    match KINDS.iter().find(|(known, _, _)| *known == name) {
        Some((_, "any", words)) => json!({"description": words}),
        Some((_, kind, words)) => json!({"type": [kind, "null"], "description": words}),
        None => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ROUTES;

    #[test]
    fn each_field_is_described_and_no_other() {
        let read: BTreeSet<&str> = ROUTES.iter().flat_map(|route| fields(route.body)).collect();
        let described: Vec<&str> = KINDS.iter().map(|(name, _, _)| *name).collect();
        assert!(described.is_sorted(), "{described:?}");
        assert_eq!(described, read.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn each_route_is_described() {
        let description = description("tales", ROUTES.as_slice());
        for Route { path, method, .. } in ROUTES.iter() {
            let operation = &description["paths"][path.replace("{*", "{")][*method];
            assert!(operation["summary"].is_string(), "{path}");
        }
        let chat = &description["paths"]["/v1/chat/completions"]["post"]["requestBody"];
        let properties = &chat["content"]["application/json"]["schema"]["properties"];
        for name in ["messages", "temperature", "response_format", "x_sws"] {
            assert!(properties[name]["description"].is_string(), "{name}");
        }
        assert_eq!(properties["suffix"], Value::Null, "a field of another interface");
    }
}
