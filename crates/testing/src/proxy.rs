//! A proxy on loopback, which takes every host for this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A proxy for tunnels (`CONNECT`), until the process ends.
#[derive(Clone, Debug)]
pub struct Proxy {
    address: SocketAddr,
    tunnels: Arc<Mutex<Vec<Tunnel>>>,
}

/// A tunnel that a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Host and port.
    pub to: String,
    /// The header `Proxy-Authorization`.
    pub authorization: Option<String>,
}

impl Proxy {
    /// Starts a proxy.
    pub fn start() -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Proxy { address: listener.local_addr()?, tunnels: Arc::default() };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        Ok(proxy)
    }

    /// Its host and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tunnels so far.
    pub fn tunnels(&self) -> Vec<Tunnel> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&self, client: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            Some(line.trim_end().to_owned())
        };
        let to = line()?.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
        let mut authorization = None;
        loop {
            let header = line()?;
            match header.split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("proxy-authorization") => {
                    authorization = Some(value.to_owned());
                }
                Some(_) => {}
            }
        }
        let port: u16 = to.rsplit_once(':')?.1.parse().ok()?;
        self.tunnels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Tunnel { to, authorization });
        let server = TcpStream::connect(("127.0.0.1", port)).ok()?;
        (&client).write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
        let mut from = server.try_clone().ok()?;
        let mut into = client.try_clone().ok()?;
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(Shutdown::Both);
        });
        // The client waits for the answer before it sends more, so the buffer is empty by now.
        let _ = std::io::copy(&mut reader, &mut &server);
        let _ = server.shutdown(Shutdown::Both);
        Some(())
    }
}
