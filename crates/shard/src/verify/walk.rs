//! Comparison of a shard's bytes with its manifest.

use sws_format::Tensor;
use xxhash_rust::xxh3::Xxh3Default;

use crate::layout;

/// Checks the bytes of a shard from front to back.
pub(super) struct Walk<'a> {
    header: &'a [u8],
    /// The remaining parts, in order.
    parts: std::vec::IntoIter<(&'a Tensor, usize)>,
    now: Region<'a>,
    /// Remaining bytes of the current region, and number of bytes hashed in the current checksum
    /// run.
    left: u64,
    run: u64,
    at: u64,
    len: u64,
    hasher: Xxh3Default,
    /// True if the current region is known to be damaged.
    bad: bool,
    pub(super) damage: Vec<String>,
}

#[derive(Clone, Copy)]
enum Region<'a> {
    Header,
    Padding,
    Part { tensor: &'a Tensor, index: usize, check: usize },
}

impl<'a> Walk<'a> {
    pub(super) fn new(tensors: &'a [Tensor], header: &'a [u8], len: u64) -> Self {
        let mut parts = Vec::new();
        for tensor in tensors {
            for index in 0..tensor.parts.len() {
                parts.push((tensor, index));
            }
        }
        Walk {
            header,
            parts: parts.into_iter(),
            now: Region::Header,
            left: header.len() as u64,
            run: 0,
            at: 0,
            len,
            hasher: Xxh3Default::new(),
            bad: false,
            damage: Vec::new(),
        }
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                self.next_region();
                continue;
            }
            let mut n = self.left.min(bytes.len() as u64);
            if let Region::Part { tensor, index, .. } = self.now {
                n = n.min(tensor.parts[index].check_len - self.run);
            }
            let (now, rest) = bytes.split_at(n as usize);
            bytes = rest;
            self.check(now);
            self.left -= n;
            self.at += n;
        }
    }

    fn check(&mut self, bytes: &[u8]) {
        match self.now {
            Region::Header => {
                let at = self.at as usize;
                if bytes != &self.header[at..at + bytes.len()] {
                    self.found("has a damaged header".to_owned());
                }
            }
            Region::Padding => {
                if bytes.iter().any(|&b| b != 0) {
                    self.found(format!("has damaged padding at byte {}", self.at));
                }
            }
            Region::Part { tensor, index, check } => {
                let part = &tensor.parts[index];
                self.hasher.update(bytes);
                self.run += bytes.len() as u64;
                if self.run == part.check_len || self.left == bytes.len() as u64 {
                    if part.checks.get(check) != Some(&self.hasher.digest()) {
                        let name = layout::part_name(tensor, index);
                        self.found(format!("has a damaged tensor `{name}`"));
                    }
                    self.hasher.reset();
                    self.run = 0;
                    self.now = Region::Part { tensor, index, check: check + 1 };
                }
            }
        }
    }

    /// Keeps the first damage of the current region.
    fn found(&mut self, what: String) {
        if !self.bad {
            self.damage.push(what);
            self.bad = true;
        }
    }

    /// Enters the padding up to the next part, or that part. The header was laid out from the same
    /// parts, so their offsets ascend.
    fn next_region(&mut self) {
        self.bad = false;
        let start = match self.parts.as_slice().first() {
            Some((tensor, index)) => tensor.parts[*index].offset,
            None => self.len,
        };
        if start > self.at {
            (self.now, self.left) = (Region::Padding, start - self.at);
        } else if let Some((tensor, index)) = self.parts.next() {
            self.now = Region::Part { tensor, index, check: 0 };
            self.left = tensor.parts[index].len;
        }
    }
}
