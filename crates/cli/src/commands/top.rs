//! `sws top`.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, bail};
use sws_watch::live::{Hello, LiveFrame, MAX_EVENT, Reader};

use crate::args::TopArgs;
use crate::http::{Body, ServerAddress};
use crate::interrupt::Interrupt;
use crate::terminal::{can_draw, has_colours, note};
use crate::watch::{Canvas, Cover};

/// Time between looks at signals.
const LOOK: Duration = Duration::from_millis(100);
/// Time within which a server gives a sign of life; it does so every ten seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Stack of a thread that reads.
const STACK: usize = 256 << 10;

/// What happened elsewhere.
enum News {
    Frame(Box<LiveFrame>),
    /// Another model is loaded.
    Hello(Box<Hello>),
    /// The end of the events, with a reason if there is one.
    Ended(Option<anyhow::Error>),
    /// A key was pressed that ends this.
    Quit,
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let (address, key) = parsed(args)?;
    let url = &args.url;
    let mut body = match address.get("/events", &key) {
        Ok(body) => body,
        Err(why) => bail!(
            "cannot read events from {url} ({why}); start a server with `sws serve MODEL`, or name another"
        ),
    };
    if !can_draw() {
        bail!("sws top needs a terminal on standard error; read {url}/events instead");
    }
    let hello = next(&mut body).with_context(|| format!("{url} cannot be read"))?;
    let Some(reader) = greeted(hello) else {
        bail!("{url} sends no events of sws; name the address of an `sws serve` of this version");
    };
    body.wait_up_to(SILENCE)?;
    let interrupt = Interrupt::of_a_server()?;
    let (news, heard) = sync_channel(4);
    spawn({
        let news = news.clone();
        move || listen(body, &news)
    })?;
    if std::io::stdin().is_terminal() {
        spawn(move || wait_for_key(&news))?;
    }
    let reason = show(reader, &heard, &interrupt)?;
    match reason {
        Some(Some(error)) => bail!("{url} cannot be read: {error}; is the server still there?"),
        Some(None) => note!("sws: the server has ended"),
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// A reader of the events that the first one announces.
fn greeted(first: Option<(String, String)>) -> Option<Reader> {
    match first {
        Some((name, data)) if name == "hello" => Reader::new(&serde_json::from_str(&data).ok()?),
        _ => None,
    }
}

/// Draws until someone ends it, or the server does: then with a reason.
fn show(
    mut reader: Reader,
    heard: &Receiver<News>,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Option<anyhow::Error>>> {
    let _cover = match Cover::new(interrupt) {
        Ok(cover) => cover,
        Err(e) => bail!("the terminal cannot be drawn on: {e}; use another one"),
    };
    let mut canvas = Canvas::default();
    reader.now.has_colours = has_colours();
    loop {
        canvas.draw(&reader.story, &reader.now);
        match heard.recv_timeout(LOOK) {
            Ok(News::Frame(frame)) => reader.take(*frame),
            Ok(News::Hello(hello)) => {
                if let Some(other) = Reader::new(&hello) {
                    let has_colours = reader.now.has_colours;
                    reader = other;
                    reader.now.has_colours = has_colours;
                }
            }
            Ok(News::Ended(reason)) => return Ok(Some(reason)),
            Ok(News::Quit) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(Some(None)),
        }
        if interrupt.is_requested() {
            return Ok(None);
        }
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    thread.map(drop).context("no thread could be started; close other programs")
}

/// Passes frames on until the stream ends.
fn listen(mut body: Body, news: &SyncSender<News>) {
    let reason = loop {
        match next(&mut body) {
            Ok(Some((name, data))) if name == "frame" => match serde_json::from_str(&data) {
                Ok(frame) => {
                    if news.send(News::Frame(Box::new(frame))).is_err() {
                        return;
                    }
                }
                Err(error) => break Some(error.into()),
            },
            // Another model is loaded.
            Ok(Some((name, data))) if name == "hello" => match serde_json::from_str(&data) {
                Ok(hello) => {
                    if news.send(News::Hello(Box::new(hello))).is_err() {
                        return;
                    }
                }
                Err(error) => break Some(error.into()),
            },
            // Of a later version.
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let _ = news.send(News::Ended(reason));
}

/// Waits for `q`.
fn wait_for_key(news: &SyncSender<News>) {
    let mut key = [0];
    while let Ok(1..) = std::io::stdin().read(&mut key) {
        if matches!(key[0], b'q' | b'Q') {
            let _ = news.send(News::Quit);
            return;
        }
    }
}

/// The name and the data of the next event.
fn next(body: &mut Body) -> anyhow::Result<Option<(String, String)>> {
    let mut name = String::new();
    while let Some(line) = body.line(MAX_EVENT)? {
        if let Some(named) = line.strip_prefix("event: ") {
            name = named.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return Ok(Some((name, data.to_owned())));
        }
    }
    Ok(None)
}

/// The address and the key.
fn parsed(args: &TopArgs) -> anyhow::Result<(ServerAddress, String)> {
    let TopArgs { url, api_key } = args;
    for (what, given) in [("the address", Some(url)), ("--api-key", api_key.as_ref())] {
        if let Some(given) = given
            && (given.contains(char::is_control) || given.contains(' '))
        {
            bail!("{what} has a blank or a control character; give it without");
        }
    }
    let place = match url.split_once("://") {
        Some(("http", place)) => place,
        Some(("https", _)) => {
            bail!("{url}: servers with TLS are not watched; name the address behind the proxy")
        }
        Some(_) => bail!("{url}: give an address such as http://127.0.0.1:8080"),
        None => url,
    };
    let place = place.trim_end_matches('/');
    if place.is_empty() || place.starts_with('/') {
        bail!("{url}: give an address such as http://127.0.0.1:8080");
    }
    Ok((ServerAddress::of(place), api_key.as_deref().unwrap_or("any").to_owned()))
}
