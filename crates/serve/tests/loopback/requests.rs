//! Requests as those who look after the server see and cancel them.

use std::io::Read;

use serde_json::Value;
use sws_testing::tales;

use crate::cancel::{begun, long};
use crate::client::{Response, Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";

fn listed(server: &Running) -> Vec<Value> {
    server.get("/v1/requests").json()["data"].as_array().unwrap().clone()
}

#[test]
fn requests_are_listed_and_cancelled() {
    let server = serve(&tales(), 1, config());
    assert_eq!(listed(&server), [] as [Value; 0]);
    let mut first = server.send(PATH, &long(true));
    begun(&mut first);
    let second = server.send(PATH, &long(false));
    wait_for(|| server.metric("sws_requests_waiting") == 1.0);
    let all = listed(&server);
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!((&all[0]["state"], &all[1]["state"]), (&"generation".into(), &"waiting".into()));
    assert_eq!((&all[0]["endpoint"], &all[1]["queue_position"]), (&PATH.into(), &1.into()));
    assert!(all[0]["completion_tokens"].as_u64().unwrap() > 0, "{all:?}");
    assert_eq!(all[0]["prompt_tokens"], all[0]["prompt_tokens_done"]);
    assert!(!all[0].to_string().contains("wolf"));

    // One that waits is answered at once, and one that runs ends.
    let cancel = |request: &Value| {
        server.delete(&format!("/v1/requests/{}", request["id"].as_str().unwrap()))
    };
    assert_eq!(cancel(&all[1]).status, 200);
    let second = Response::read(second);
    assert_eq!(second.status, 409, "{second:?}");
    assert!(second.head.contains("x-should-retry: false"), "{second:?}");
    assert_eq!(cancel(&all[0]).json()["cancelled"], true);
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("cancelled_error") && !rest.contains("[DONE]"), "{rest}");
    wait_for(|| listed(&server).is_empty());
    assert_eq!(cancel(&all[0]).status, 404);
}

#[test]
fn answers_tell_what_the_engine_did() {
    let server = serve(&tales(), 1, config());
    let body = serde_json::json!({"prompt": "a", "max_tokens": 3});
    let answer = server.post(PATH, &body);
    assert!(answer.head.contains("sws-engine: bytes-read="), "{answer:?}");
    assert!(answer.json()["x_sws"]["bytes_read"].is_u64(), "{answer:?}");
}
