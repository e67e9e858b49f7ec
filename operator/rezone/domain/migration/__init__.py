"""The machine of a RegionMigration: one leader transfer."""
