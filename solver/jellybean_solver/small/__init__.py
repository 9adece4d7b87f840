"""Problems whose selections can be enumerated: beam search with bounds over an exact worker assignment."""
