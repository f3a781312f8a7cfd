"""Training of base models, generators for laptops, and simulators of search engines."""
