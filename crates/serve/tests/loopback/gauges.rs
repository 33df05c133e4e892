//! The contract with routers: what `deploy/k8s` names is there, with its type and its value.

use serde_json::json;
use sws_serve::ServerConfig;
use sws_testing::{root, tales};

use crate::cancel::{begun, long};
use crate::client::{Running, config, serve, wait_for};

const PATH: &str = "/v1/completions";

/// The value of a field of a file in `deploy/k8s`.
fn named(file: &str, field: &str) -> String {
    let text = std::fs::read_to_string(root().join("deploy/k8s").join(file)).unwrap();
    let found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(field)?.strip_prefix(": "))
        .collect();
    assert_eq!(found.len(), 1, "{field} in {file}: {found:?}");
    found[0].trim().to_owned()
}

/// The gauges that the picker of an InferencePool reads: waiting, running, and the share of keys and
/// values.
fn gauges() -> [String; 3] {
    ["queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"]
        .map(|field| named("pool.yaml", field))
}

/// The type that `/metrics` tells of a name.
fn kind(server: &Running, name: &str) -> String {
    let text = server.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} ")));
    line.unwrap_or_else(|| panic!("{name} in {text}")).to_owned()
}

#[test]
fn gauges_of_the_pool_are_those_of_the_server() {
    let server = serve(&tales(), 1, config());
    let [waiting, running, share] = gauges();
    for gauge in [&waiting, &running, &share] {
        assert_eq!(kind(&server, gauge), "gauge", "{gauge}");
        assert_eq!(server.metric(gauge), 0.0, "{gauge}");
    }
    // A text that is written, and one that waits.
    let mut first = server.send(PATH, &long(true));
    begun(&mut first);
    assert_eq!((server.metric(&running), server.metric(&waiting)), (1.0, 0.0));
    let second = server.send(PATH, &long(false));
    wait_for(|| server.metric(&waiting) == 1.0);
    assert_eq!(server.metric(&running), 1.0);
    let (mut last, mut rises) = (0.0, 0);
    while rises < 5 {
        let now = server.metric(&share);
        assert!((last..=1.0).contains(&now), "{now} after {last}");
        rises += u32::from(now > last);
        last = now;
    }
    drop(second);
    drop(first);
    wait_for(|| server.metric(&running) + server.metric(&waiting) + server.metric(&share) == 0.0);
    // What is kept of texts that are over makes room for others, and is not counted.
    assert!(server.metric("sws_kept_prefixes") > 0.0);
}

/// Half of the room, by a prompt of half of the context.
#[test]
fn the_share_is_that_of_the_positions_of_all_texts() {
    let server = serve(&tales(), 2, config());
    let [_, _, share] = gauges();
    let limit = server.get("/props").json()["n_ctx"].as_u64().unwrap() as usize;
    let prompt = vec![5; limit / 2];
    let body = json!({"prompt": prompt, "max_tokens": 1500, "ignore_eos": true, "stream": true, "seed": 1});
    let mut first = server.send(PATH, &body);
    begun(&mut first);
    // The first token is sent before its pass is counted.
    wait_for(|| server.metric(&share) >= 0.25);
    let now = server.metric(&share);
    assert!((0.25..0.25 + 1500.0 / (2 * limit) as f64).contains(&now), "{now}");
}

#[test]
fn scaling_asks_for_what_is_there() {
    let server = serve(&tales(), 1, config());
    let query = named("scale.yaml", "query");
    let name = query.trim_start_matches("sum(").trim_end_matches(')');
    assert_eq!((name, kind(&server, name).as_str()), (gauges()[0].as_str(), "gauge"));
}

/// The picker sends no key.
#[test]
fn counters_are_open_where_they_should_be() {
    let keys = vec!["secret".to_owned()];
    for (open_metrics, metrics) in [(false, 401), (true, 200)] {
        let config = ServerConfig { keys: keys.clone(), open_metrics, ..config() };
        let server = serve(&tales(), 1, config);
        let status = |path| server.get(path).status;
        assert_eq!((status("/metrics"), status("/v1/models")), (metrics, 401));
    }
    let text = std::fs::read_to_string(root().join("deploy/k8s/sws.yaml")).unwrap();
    assert!(text.contains("--open-metrics"), "{text}");
}
