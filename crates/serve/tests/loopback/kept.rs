//! Responses that later requests continue.

use serde_json::{Value, json};
use sws_serve::ServerLimits;

use crate::chats;
use crate::client::{Running, config, serve};

const PATH: &str = "/v1/responses";

/// A short request with these fields.
fn body(input: Value, more: Value) -> Value {
    let mut body =
        json!({"input": input, "max_output_tokens": 4, "temperature": 0, "ignore_eos": true});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

fn ask(server: &Running, input: Value, more: Value) -> Value {
    server.ask(PATH, &body(input, more))
}

#[test]
fn a_response_continues_another() {
    let (_temp, dir) = chats::model();
    let limits = ServerLimits { kept_responses: 1 << 20, ..config().limits };
    let server = serve(&dir, 1, sws_serve::ServerConfig { limits, ..config() });
    let first = ask(&server, json!("hello"), json!({"instructions": "short"}));
    assert_eq!(first["store"], true);
    let id = &first["id"];
    assert!(id.as_str().unwrap().starts_with("resp_"));
    let next =
        ask(&server, json!("and"), json!({"previous_response_id": id, "instructions": "long"}));
    assert_eq!(&next["previous_response_id"], id);
    let whole = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": text(&first)},
        {"role": "user", "content": "and"},
    ]);
    let expected = ask(&server, whole, json!({"instructions": "long", "store": false}));
    assert_eq!(text(&next), text(&expected));
    assert_eq!(next["usage"]["input_tokens"], expected["usage"]["input_tokens"]);

    // An item of it, by its id; and the number of tokens alone.
    let item = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let input =
        json!([{"role": "user", "content": "hello"}, item, {"role": "user", "content": "and"}]);
    let referred = body(input, json!({"instructions": "long"}));
    assert_eq!(text(&server.ask(PATH, &referred)), text(&expected));
    let counted = server.ask("/v1/responses/input_tokens", &referred);
    assert_eq!(counted["input_tokens"], expected["usage"]["input_tokens"]);

    let path = format!("{PATH}/{}", id.as_str().unwrap());
    assert_eq!(server.get(&path).json(), first);
    assert_eq!(server.delete(&path).json()["deleted"], true);
    for response in [server.get(&path), server.delete(&path)] {
        assert_eq!(response.status, 404, "{response:?}");
    }
    // One that is not stored cannot be continued.
    let again = body(json!("and"), json!({"previous_response_id": expected["id"]}));
    let refused = server.post(PATH, &again);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
}

#[test]
fn without_memory_for_them_none_is_kept() {
    let (_temp, dir) = chats::model();
    let server = serve(&dir, 1, config());
    let first = ask(&server, json!("hello"), json!({}));
    assert_eq!(first["store"], false);
    let reference = json!([{"type": "item_reference", "id": first["output"][0]["id"]}]);
    for again in [
        body(json!("and"), json!({"previous_response_id": first["id"]})),
        body(reference, json!({})),
    ] {
        let refused = server.post(PATH, &again);
        assert_eq!(refused.status, 400, "{refused:?}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("--keep-responses"), "{message}");
    }
}
