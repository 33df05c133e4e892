//! Downloads through a proxy on loopback.

use std::collections::BTreeMap;
use std::net::TcpListener;

use sws_format::Clock;
use sws_hub::{Client, Environment, HubError, ModelId};
use sws_testing::hub::Hub;
use sws_testing::proxy::Proxy;

const FILE: &str = "model.safetensors";

fn id() -> ModelId {
    "own/model".parse().unwrap()
}

fn hub() -> Hub {
    Hub::start(id().as_str(), BTreeMap::from([(FILE.to_owned(), vec![7; 1000])])).unwrap()
}

/// Downloads the file with these settings.
fn download(variables: &[(&str, String)]) -> Result<Vec<u8>, HubError> {
    let environment = Environment::from(|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| value.into())
    })?;
    let client = Client::with_clock(&environment, Clock::simulated())?;
    let listing = client.list(&id(), "main")?;
    client.read(&listing, listing.file(FILE).unwrap())
}

#[test]
fn requests_go_through_the_proxy_but_to_excepted_hosts() {
    for (except, storage_too) in [("", true), ("127.0.0.1", false), ("*", false)] {
        let (hub, proxy) = (hub(), Proxy::start().unwrap());
        let port = hub.endpoint().rsplit_once(':').unwrap().1.to_owned();
        // A host that only the proxy knows, unless no request is to go through it.
        let host = if except == "*" { "127.0.0.1" } else { "hub.invalid" };
        let bytes = download(&[
            ("HF_ENDPOINT", format!("http://{host}:{port}")),
            ("HTTP_PROXY", format!("http://me:secret@{}", proxy.address())),
            ("NO_PROXY", format!("other.example,{except}")),
        ]);
        assert_eq!(bytes.unwrap(), vec![7; 1000]);
        let tunnels = proxy.tunnels();
        let through = |host: &str| tunnels.iter().any(|tunnel| tunnel.to.starts_with(host));
        assert_eq!(through("hub.invalid"), except != "*", "{tunnels:?}");
        assert_eq!(through("127.0.0.1"), storage_too, "{tunnels:?}");
        for tunnel in tunnels {
            assert_eq!(tunnel.authorization.as_deref(), Some("Basic bWU6c2VjcmV0"));
        }
    }
}

#[test]
fn a_proxy_that_is_not_there() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = download(&[
        ("HF_ENDPOINT", hub().endpoint()),
        ("ALL_PROXY", format!("http://me:secret@127.0.0.1:{port}")),
    ]);
    let error = error.unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("proxy") && !error.contains("secret"), "{error}");
}
