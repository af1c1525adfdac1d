"""Values with everything in them: structural comparison, walks and rewrites; text."""
