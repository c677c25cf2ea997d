//! How bytes move between two ranks.
