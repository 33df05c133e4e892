//! Listings and downloads, from hubs on loopback.

mod corpus;
mod faults;
mod proxies;
