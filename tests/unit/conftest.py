"""Its presence puts this folder on ``sys.path``, so that tests in any room can import builders."""
