//! Bodies that arrive slowly, in part, or not at all.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use sws_format::Clock;
use sws_testing::tales;

use crate::client::{Response, Running, config, serve};

const PATH: &str = "/detokenize";

/// A request of about so many bytes that takes no time once it is there.
fn tokens(bytes: usize) -> String {
    json!({"tokens": vec![7; bytes / 2]}).to_string()
}

/// Sends the header and the first bytes of a request.
fn begin(server: &Running, whole: &str, bytes: usize) -> TcpStream {
    let head = "host: localhost\r\nconnection: close\r\ncontent-length";
    server.raw(&format!(
        "POST {PATH} HTTP/1.1\r\n{head}: {}\r\n\r\n{}",
        whole.len(),
        &whole[..bytes]
    ))
}

fn count(answer: &Value) -> usize {
    answer["content"].as_str().unwrap().len()
}

#[test]
fn bodies_that_do_not_arrive_stop_nobody() {
    let mut config = config();
    // Longer than the test.
    config.limits.body_time = Duration::from_secs(60);
    let server = serve(&tales(), 1, config);
    let chunked = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
    let silent = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2097152\r\n\r\n";
    let large = tokens(2_000_000);
    let mut open = vec![begin(&server, &large, 1_900_000)];
    let mut small = Duration::ZERO;
    for number in 0..100 {
        open.push(server.raw(if number % 2 == 0 { chunked } else { silent }));
        if number % 20 == 0 {
            let clock = Clock::real();
            let answer = server.ask("/tokenize", &json!({"content": "a"}));
            assert_eq!(answer["count"], 1);
            small = small.max(clock.now());
        }
    }
    assert!(small < Duration::from_secs(10), "{small:?}");
    // Larger ones have room, too; one as large as it may be takes the turn.
    for bytes in [100_000, 1_500_000] {
        let clock = Clock::real();
        let answer = Response::read(begin(&server, &tokens(bytes), tokens(bytes).len()));
        assert!(count(&answer.json()) >= bytes / 2, "{bytes}");
        assert!(clock.now() < Duration::from_secs(20), "{bytes}: {:?}", clock.now());
    }
    // The one that stalled is answered once the rest is there.
    open[0].write_all(&large.as_bytes()[1_900_000..]).unwrap();
    assert!(count(&Response::read(open.remove(0)).json()) >= 1_000_000);
}

#[test]
fn bodies_that_stall_are_refused_and_slow_ones_are_not() {
    let mut config = config();
    config.limits.header_time = Duration::from_secs(1);
    config.limits.body_time = Duration::from_secs(1);
    let server = serve(&tales(), 1, config);
    let whole = tokens(40_000);
    let stalled = begin(&server, &whole, 10_000);
    let mut slow = begin(&server, &whole, 0);
    // Eight times as fast as it has to be, and longer than any one span.
    let clock = Clock::real();
    for part in whole.as_bytes().chunks(800) {
        slow.write_all(part).unwrap();
        clock.sleep(Duration::from_millis(100));
    }
    assert!(clock.now() > Duration::from_secs(4));
    let answer = Response::read(slow);
    assert_eq!(answer.status, 200, "{answer:?}");
    let refused = Response::read(stalled);
    assert_eq!(refused.status, 408, "{refused:?}");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("less than 1024 bytes of the request arrived in 1 second"),
        "{message}"
    );
    assert!(refused.head.contains("x-should-retry: true"), "{refused:?}");
}

#[test]
fn large_bodies_that_have_arrived_in_part_all_end() {
    let mut config = config();
    config.limits.body = 256 << 10;
    // None is slow, on no machine.
    config.limits.body_time = Duration::from_secs(60);
    let server = serve(&tales(), 1, config);
    let whole = tokens(250_000);
    let mut open: Vec<TcpStream> = (0..6).map(|_| begin(&server, &whole, 130_000)).collect();
    // Together more than all that may be in memory, and each by half.
    std::thread::scope(|scope| {
        for stream in &mut open {
            let rest = &whole.as_bytes()[130_000..];
            scope.spawn(move || stream.write_all(rest).unwrap());
        }
    });
    for stream in open {
        let answer = Response::read(stream);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn slow_large_bodies_give_way_where_others_wait() {
    let mut config = config();
    config.limits.body = 64 << 10;
    config.limits.body_time = Duration::from_secs(1);
    let server = serve(&tales(), 1, config);
    let whole = tokens(64_000);
    // The first fills the pool, the second takes the turn, and the others wait for it.
    let mut slow: Vec<TcpStream> = (0..8).map(|_| begin(&server, &whole, 50_000)).collect();
    let rest = &whole.as_bytes()[50_000..];
    std::thread::scope(|scope| {
        for stream in &mut slow {
            scope.spawn(move || {
                // It may be refused meanwhile.
                for part in rest.chunks(300) {
                    if stream.write_all(part).is_err() {
                        break;
                    }
                    Clock::real().sleep(Duration::from_millis(100));
                }
            });
        }
        Clock::real().sleep(Duration::from_millis(300));
        let answer = Response::read(begin(&server, &whole, whole.len()));
        assert_eq!(answer.status, 200, "{answer:?}");
    });
    let answers: Vec<Response> = slow.into_iter().map(Response::read).collect();
    let refused = answers.iter().find(|answer| answer.status == 503);
    let refused = refused.unwrap_or_else(|| panic!("{answers:?}"));
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
}
