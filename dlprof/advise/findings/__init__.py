"""Why a loader is slow: rules that turn what a profile measured into findings.

``evidence`` holds what was measured, worked out into the figures that rules ask for; ``claims``
what a rule answers with, and what a change brings. The rules are in ``machine``, ``loader`` and
``dataset``; ``diagnosis`` lists them, one for each code, and makes what they find a diagnosis.
"""
