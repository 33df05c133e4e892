//! Cancellation in each state of a request, streamed or not, by a client that leaves or by the request's id.

use std::io::Read;

use serde_json::{Value, json};
use sws_testing::tales;

use crate::cancel::{assert_idle, begun};
use crate::client::{Response, Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";
/// More tokens than a text makes before it is cancelled.
const MANY: usize = 2000;

/// What a request waits for when it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Prompt,
    Decode,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Leaving,
    Id,
}

/// The text whose bits must not change.
fn neighbour() -> Value {
    json!({"prompt": "Rain fell", "seed": 9, "max_tokens": 1000, "ignore_eos": true, "stream": true})
}

fn victim(state: State, stream: bool) -> Value {
    let repeats = if state == State::Prompt { 200 } else { 8 };
    let prompt = "The wolf and the fox went to the sea. ".repeat(repeats);
    json!({"prompt": prompt, "max_tokens": MANY, "ignore_eos": true, "seed": 3, "stream": stream})
}

#[test]
fn cancelled_requests_stop_in_each_state_and_change_nothing_else() {
    let alone = serve(&tales(), 1, config()).post(PATH, &neighbour()).texts();
    for state in [State::Queued, State::Prompt, State::Decode] {
        for stream in [true, false] {
            for by in [By::Leaving, By::Id] {
                cancelled(&format!("{state:?}, {stream}, {by:?}"), &alone, (state, stream, by));
            }
        }
    }
}

fn cancelled(case: &str, alone: &str, (state, stream, by): (State, bool, By)) {
    let texts = if state == State::Queued { 1 } else { 2 };
    let server = serve(&tales(), texts, config());
    let mut beside = server.send(PATH, &neighbour());
    let mut seen = begun(&mut beside);
    let body = victim(state, stream);
    let mut client = server.send(PATH, &body);
    let request = reached(&server, state);
    match by {
        By::Leaving => drop(client),
        By::Id => {
            let id = request["id"].as_str().unwrap();
            assert_eq!(server.delete(&format!("/v1/requests/{id}")).status, 200, "{case}");
            let mut told = String::new();
            client.read_to_string(&mut told).unwrap();
            assert!(told.contains("cancelled_error") && !told.contains("[DONE]"), "{case}: {told}");
        }
    }
    // It is gone while its neighbour goes on.
    wait_for(|| listed(&server).iter().all(|other| other["id"] != request["id"]));
    beside.read_to_end(&mut seen).unwrap();
    assert_eq!(Response::parse(seen).texts(), alone, "{case}");
    assert_idle(&server);

    // What was computed of it stays.
    let read = server.metric("sws_prompt_tokens_total");
    let mut again = body;
    (again["stream"], again["max_tokens"], again["seed"]) = (false.into(), 1.into(), 4.into());
    let usage = server.ask(PATH, &again)["usage"].take();
    let prompt = usage["prompt_tokens"].as_f64().unwrap();
    let known = usage["prompt_tokens_details"]["cached_tokens"].as_f64().unwrap();
    match state {
        State::Queued => assert!(read < prompt && known == 0.0, "{case}: {usage}"),
        // A whole answer sends nothing for half a second, so its client is missed only then.
        State::Prompt if matches!((stream, by), (false, By::Leaving)) => {
            assert!(0.0 < known, "{case}: {usage}");
        }
        State::Prompt => assert!(0.0 < known && known < prompt - 1.0, "{case}: {usage}"),
        State::Decode => assert_eq!(known, prompt - 1.0, "{case}: {usage}"),
    }
}

/// Waits until the last request is in a state, and returns it.
fn reached(server: &Running, state: State) -> Value {
    let mut found = Value::Null;
    wait_for(|| {
        // Its neighbour comes first.
        let Some(request) = listed(server).into_iter().nth(1) else { return false };
        let count = |field: &str| request[field].as_u64().unwrap();
        let (done, prompt) = (count("prompt_tokens_done"), count("prompt_tokens"));
        let is_there = match state {
            State::Queued => request["queue_position"] == 1,
            State::Prompt => 0 < done && done < prompt,
            State::Decode => count("completion_tokens") > 3,
        };
        found = request;
        is_there
    });
    found
}

fn listed(server: &Running) -> Vec<Value> {
    server.get("/v1/requests").json()["data"].as_array().unwrap().clone()
}
