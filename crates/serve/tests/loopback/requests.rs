//! Requests as those who look after the server see and cancel them.

use std::io::Read;

use serde_json::{Value, json};
use sws::{Activations, Needs};
use sws_engine::{Certificate, CertificateOutcome};
use sws_testing::tales;

use crate::cancel::{begun, long};
use crate::client::{Response, Running, config, load, serve, wait_for};

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

/// Of a text among others, in each way to ask for it.
#[test]
fn certificates_of_answers_agree_when_computed_again() {
    let server = serve(&tales(), 2, config());
    let mut neighbour = server.send(PATH, &long(true));
    begun(&mut neighbour);
    let mut model = load(&tales(), Needs::default());
    let body = json!({"prompt": "The wolf", "seed": 5, "max_tokens": 24, "temperature": 0.8});
    let plain = server.ask(PATH, &body);
    let mut asked = body.clone();
    asked["x_sws"] = json!({"certificate": true});
    let answer = server.ask(PATH, &asked);
    assert_eq!(answer["choices"], plain["choices"]);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    asked["stream"] = true.into();
    let events = server.post(PATH, &asked).events();
    let last = &events[events.len() - 1];
    let mut tampered = answer["x_sws"]["certificate"].clone();
    for certificate in [&answer["x_sws"]["certificate"], &last["x_sws"]["certificate"]] {
        let certificate = Certificate::parse(certificate.to_string().as_bytes()).unwrap();
        certificate.check(model.model().manifest(), Activations::F32).unwrap();
        let (spec, steps) = (model.model().spec().clone(), certificate.tokens().len());
        model.causal_lm().clear();
        let outcome = certificate.replay(&spec, model.causal_lm(), &mut |_| true).unwrap();
        assert_eq!((outcome, steps), (CertificateOutcome::Agrees { steps: 24 }, 24));
    }
    tampered["tokens"][3] = 7.into();
    assert!(Certificate::parse(tampered.to_string().as_bytes()).is_err());

    asked["stream"] = false.into();
    let mut limited = config();
    limited.limits.body = 1 << 14;
    let small = serve(&tales(), 2, limited);
    for (name, value) in [
        ("n", json!(2)),
        ("logit_bias", json!({"5": 1.0})),
        ("guided_regex", json!("a+")),
        ("max_tokens", json!(4000)),
    ] {
        let mut refused = asked.clone();
        refused[name] = value;
        let response = small.post(PATH, &refused);
        assert_eq!(response.status, 400, "{response:?}");
        assert_eq!(response.json()["error"]["param"], "x_sws", "{response:?}");
    }
    let elsewhere = json!({"input": "a", "x_sws": {"certificate": true}});
    let refused = server.post("/v1/responses", &elsewhere);
    assert_eq!(refused.status, 400, "{refused:?}");
    let several = server.post("/v1/responses", &json!({"input": "a", "n": 2}));
    assert_eq!((several.status, &several.json()["error"]["param"]), (400, &"n".into()));
}

#[test]
fn answers_tell_what_the_engine_did() {
    let server = serve(&tales(), 1, config());
    let body = serde_json::json!({"prompt": "a", "max_tokens": 3});
    let answer = server.post(PATH, &body);
    assert!(answer.head.contains("sws-engine: bytes-read="), "{answer:?}");
    assert!(answer.json()["x_sws"]["bytes_read"].is_u64(), "{answer:?}");
}

/// Each path of the description leads somewhere, with its method.
#[test]
fn the_description_is_of_this_server() {
    let server = serve(&tales(), 1, config());
    let description = server.get("/openapi.json").json();
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() > 20, "{paths:?}");
    for (path, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            if path == "/events" {
                continue;
            }
            let path = path.replace("{id}", "nonesuch");
            let head = "host: localhost\r\nconnection: close\r\ncontent-length: 2";
            let request =
                format!("{} {path} HTTP/1.1\r\n{head}\r\n\r\n{{}}", method.to_uppercase());
            let response = Response::read(server.raw(&request));
            let known = response.status != 405
                && !response.body.contains("there is nothing at this address");
            assert!(known, "{method} {path}: {response:?}");
        }
    }
}
