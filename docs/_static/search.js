// A browser does not fetch pages from a disk: there, search lists titles without extracts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
