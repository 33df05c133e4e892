//! A row of the table of endpoints.

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::app::App;

/// An endpoint.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    /// Its method, in small letters.
    pub(crate) method: &'static str,
    /// A line about it.
    pub(crate) about: &'static str,
    pub(crate) body: RouteFields,
    pub(crate) handler: fn() -> MethodRouter<Arc<App>>,
}

/// The body of a request: the names of its fields, and whether it has those of all interfaces.
#[derive(Clone, Copy)]
pub(crate) enum RouteFields {
    /// There is none.
    None,
    /// These alone.
    Own(fn() -> Vec<&'static [&'static str]>),
    /// These and those of all interfaces.
    All(fn() -> Vec<&'static [&'static str]>),
}

impl Route {
    pub(crate) const fn new(
        method: &'static str,
        path: &'static str,
        about: &'static str,
        handler: fn() -> MethodRouter<Arc<App>>,
    ) -> Route {
        Route { path, method, about, body: RouteFields::None, handler }
    }

    pub(crate) const fn with(self, body: RouteFields) -> Route {
        Route { body, ..self }
    }
}
