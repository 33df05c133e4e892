//! Chats line by line with a model that has a chat template. An answer is cut off after ten
//! seconds.
//!
//! ```text
//! cargo run --release -p sws --example chat -- MODEL [RAM]
//! ```

use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use sws::{End, GenerationOptions, Model};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("name a model that has a chat template")?;
    let ram = args.next().unwrap_or("auto".to_owned());

    let mut model = Model::open(name)?.ram(&ram).load()?;
    let mut conversation = model.conversation(&GenerationOptions::default())?;
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let mut answer = model.chat(&mut conversation, &line?)?;
        // The handle cancels the answer from another thread.
        let cancel = answer.cancel_handle();
        let (over, wait) = channel::<()>();
        let watch = std::thread::spawn(move || {
            if wait.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
                cancel.cancel();
            }
        });
        for piece in &mut answer {
            write!(out, "{}", piece?)?;
            out.flush()?;
        }
        drop(over);
        watch.join().expect("it only waits");
        let cut = if answer.finish().end == End::Cancelled { " [cut off]" } else { "" };
        writeln!(out, "{cut}")?;
    }
    Ok(())
}
